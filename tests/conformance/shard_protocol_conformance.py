"""The shard protocol from an independent client: Python, grpcio and stubs generated from the .proto, nothing of our C++.

Written from docs/protocol.md. `--worker PROGRAM` starts that worker for each test; `--target HOST:PORT` asks any worker, whatever its layers.
Exit status 77: there is no grpcio here, nothing was tested.
"""

import argparse
import hashlib
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

try:
    import grpc
except ImportError as missing:
    print(f"skipped: {missing}; how to get it: apt-get install python3-grpcio python3-protobuf")
    sys.exit(77)

arguments = None
pb = pb_grpc = health_pb = health_grpc = None


def import_stubs(folder):
    global pb, pb_grpc, health_pb, health_grpc
    sys.path.insert(0, folder)
    from meshnet.shard.v1 import health_pb2, health_pb2_grpc, shard_pb2, shard_pb2_grpc
    pb, pb_grpc, health_pb, health_grpc = shard_pb2, shard_pb2_grpc, health_pb2, health_pb2_grpc


def prefix_digest(salt, tokens):
    text = b"meshnet.shard.v1 prefix" + struct.pack("<I", len(salt)) + salt + b"".join(struct.pack("<i", token) for token in tokens)
    return hashlib.sha256(text).digest()[:16]


class Worker:
    """A worker process, or the target."""

    def __init__(self, flags=(), environment=None):
        self.process = None
        if arguments.target:
            self.address = arguments.target
            return
        variables = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
        variables.update({"MESHNET_HOT_KV_MAX_SESSIONS": "4", "MESHNET_HOT_KV_CONTEXT_TOKENS": "64", "MESHNET_HOT_KV_BUDGET_TOKENS": "256"})
        variables.update(environment or {})
        # Its lifeline ends with this process, however that ends.
        self.lifeline_end, self.lifeline = os.pipe()
        command = [arguments.worker, "--chunk-rows", "16", "--lifeline-fd", str(self.lifeline_end), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables, pass_fds=[self.lifeline_end])
        self.address = self.process.stdout.readline().decode().strip()
        assert self.address, "the worker ended before it was ready"

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            os.close(self.lifeline_end)
            os.close(self.lifeline)


class Refused(Exception):
    """A unary call's typed refusal."""

    def __init__(self, error):
        super().__init__(error.details())
        self.code = error.code()
        trailers = dict(error.trailing_metadata() or ())
        self.detail = pb.ErrorDetail.FromString(trailers["meshnet-error-bin"]) if "meshnet-error-bin" in trailers else None
        self.status_details = trailers.get("grpc-status-details-bin", b"")

    @property
    def text(self):
        return describe(self.detail) if self.detail else f"{self.code} without detail"


def describe(detail):
    text = pb.Reason.Name(detail.reason)
    return text if detail.detail == pb.DETAIL_NONE else text + "/" + pb.Detail.Name(detail.detail)


class Client:
    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)])
        self.shard = pb_grpc.ShardStub(self.channel)
        self.health = health_grpc.HealthStub(self.channel)
        self.opened = []

    def close(self):
        if arguments.target:  # somebody else's worker gets its reservations back
            for ref in self.opened:
                self.release(ref)
        self.channel.close()

    @staticmethod
    def call(method, request):
        try:
            return method(request, timeout=30)
        except grpc.RpcError as error:
            raise Refused(error) from None

    def describe(self, major=1, minor=0):
        return self.call(self.shard.Describe, pb.DescribeRequest(protocol_major=major, protocol_minor=minor))

    def open(self, request):
        reply = self.call(self.shard.Open, request)
        self.opened.append(pb.SessionRef.FromString(request.ref.SerializeToString()))
        return reply

    def release(self, ref):
        return self.call(self.shard.Release, pb.ReleaseRequest(ref=ref)).outcome

    def stats(self):
        return self.call(self.shard.Stats, pb.StatsRequest())


class Stream:
    """One Forward stream; answers are matched by their request id."""

    def __init__(self, client):
        self.outgoing, self.closed, self.next_id = [], False, 1
        self.changed = threading.Condition()
        self.answers = {}
        self.call = client.shard.Forward(self.messages(), timeout=30)

    def messages(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.outgoing or self.closed)
                if not self.outgoing:
                    return
                message = self.outgoing.pop(0)
            yield message

    def send(self, steps, cancels=()):
        ids = []
        message = pb.ForwardRequest(cancels=[pb.CancelSteps(ref=ref) for ref in cancels])
        for step in steps:
            copy = message.steps.add()
            copy.CopyFrom(step)
            copy.request_id = self.next_id
            ids.append(self.next_id)
            self.next_id += 1
        with self.changed:
            self.outgoing.append(message)
            self.changed.notify_all()
        return ids

    def answer(self, request_id):
        while request_id not in self.answers:
            for answer in next(self.call).answers:
                self.answers[answer.request_id] = answer
        return self.answers.pop(request_id)

    def ask(self, step):
        return self.answer(self.send([step])[0])

    def said(self, step):
        """"OK", "REPLAYED" or the refusal."""
        answer = self.ask(step)
        if answer.HasField("error"):
            return describe(answer.error)
        return "REPLAYED" if answer.result.replayed else "OK"

    def finish(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def end(self):
        self.finish()
        self.call.cancel()


class Session:
    """What a correct caller keeps of one session."""

    def __init__(self, client, shard, session_id=None, epoch=1):
        self.client, self.shard = client, shard
        self.ref = pb.SessionRef(route_session_id=session_id or os.urandom(16), route_epoch=epoch)
        self.log, self.next, self.acked, self.incarnation, self.salt = [], 1, 0, shard.incarnation, b""

    def request(self, reserve=64):
        return pb.OpenRequest(ref=self.ref, model_root=self.shard.model_root, range=self.shard.range, reserve_tokens=reserve, cache_salt=self.salt,
                              protocol_major=1)

    def open(self, reserve=64):
        reply = self.client.open(self.request(reserve))
        self.incarnation, self.next, self.acked = reply.incarnation, reply.next_step, reply.next_step - 1
        self.log = self.log[:reply.past_len]
        return reply

    def prefill(self, tokens):
        step = pb.Step(ref=self.ref, incarnation=self.incarnation, step_seq=self.next, kind=pb.STEP_KIND_PREFILL, start_pos=len(self.log),
                       prefix_digest=prefix_digest(self.salt, self.log), tokens=tokens, rows=pb.ROWS_WANTED_LAST, ack_seq=self.acked)
        if self.shard.range.begin > 0:
            count = len(tokens) * self.shard.boundary_width
            step.input.CopyFrom(pb.Frame(layout_version=1, encoding=pb.ENCODING_F32, rows=len(tokens), width=self.shard.boundary_width,
                                         payload=struct.pack(f"<{count}f", *([0.25] * count))))
        return step

    def decode(self, token):
        step = self.prefill([token])
        step.kind = pb.STEP_KIND_DECODE
        return step

    def commit(self, step):
        self.log = self.log[:step.start_pos] + list(step.tokens)
        self.next = step.step_seq + 1

    def forward(self, stream, step):
        answer = stream.ask(step)
        if answer.HasField("error"):
            return describe(answer.error)
        self.commit(step)
        self.acked = step.step_seq
        return answer.result


def greedy():
    """llama-server's defaults, temperature 0: every field is written."""
    return pb.SamplingParams(temperature=0, dynatemp_exponent=1, top_k=40, top_p=0.95, min_p=0.05, top_n_sigma=-1, typical_p=1, xtc_threshold=0.1,
                             repeat_last_n=64, repeat_penalty=1, dry_base=1.75, dry_allowed_length=2, dry_penalty_last_n=64, mirostat_tau=5,
                             mirostat_eta=0.1, adaptive_target=-1, adaptive_decay=0.9, reasoning_budget_tokens=-1)


class ProtocolTest(unittest.TestCase):
    flags = ()

    def setUp(self):
        self.worker = Worker(self.flags)
        self.addCleanup(self.worker.stop)
        self.client = Client(self.worker.address)
        self.addCleanup(self.client.close)
        self.shard = self.client.describe()
        self.stream = Stream(self.client)
        self.addCleanup(self.stream.end)

    def session(self, **keywords):
        session = Session(self.client, self.shard, **keywords)
        session.open()
        return session

    @property
    def is_tail(self):
        return self.shard.range.end == self.shard.layer_count

    def observe(self, session):
        """What a refusal leaves as it is: the session, and on a worker that nobody else uses all statistics but those of refusals."""
        reply, stats = self.client.open(session.request()), self.client.stats()
        stats.ClearField("refusals")
        for other in stats.sessions:
            other.ClearField("idle_seconds")
        return reply, None if arguments.target else stats

    def assert_refused(self, session, step, text, code):
        before = self.observe(session)
        answer = self.stream.ask(step)
        self.assertTrue(answer.HasField("error"), f"expected {text}")
        self.assertEqual(describe(answer.error), text)
        self.assertEqual(answer.error.grpc_code, code.value[0])
        self.assertEqual(answer.error.incarnation, self.shard.incarnation)
        self.assertNotIn(session.ref.route_session_id.hex(), answer.error.message)
        self.assertEqual(self.observe(session), before, "a refused step changed something")
        return answer.error


class WholeModelTest(ProtocolTest):
    def test_describe(self):
        self.assertEqual(self.shard.state, pb.SHARD_STATE_SERVING)
        self.assertEqual((self.shard.protocol_major, list(self.shard.encodings)), (1, [pb.ENCODING_F32]))
        self.assertEqual([len(self.shard.incarnation), len(self.shard.model_root), len(self.shard.range_digest)], [16, 32, 32])
        with self.assertRaises(Refused) as caught:
            self.client.describe(major=2)
        self.assertEqual((caught.exception.text, caught.exception.code), ("PROTOCOL_MISMATCH", grpc.StatusCode.UNIMPLEMENTED))

    def test_open_refuses_what_is_not_here(self):
        for field, value, text, code in [
            ("model_root", b"x" * 32, "MODEL_MISMATCH", grpc.StatusCode.FAILED_PRECONDITION),
            ("model_root", b"x", "BAD_REQUEST/SHAPE", grpc.StatusCode.INVALID_ARGUMENT),
            ("cache_salt", b"x" * 65, "BAD_REQUEST/LIMIT", grpc.StatusCode.INVALID_ARGUMENT),
            ("reserve_tokens", 2**31, "BAD_REQUEST/LIMIT", grpc.StatusCode.INVALID_ARGUMENT),
            ("protocol_major", 9, "PROTOCOL_MISMATCH", grpc.StatusCode.UNIMPLEMENTED),
        ]:
            with self.subTest(field=field, text=text), self.assertRaises(Refused) as caught:
                request = Session(self.client, self.shard).request()
                setattr(request, field, value)
                self.client.open(request)
            self.assertEqual((caught.exception.text, caught.exception.code), (text, code))
            self.assertIn(b"meshnet.shard.v1.ErrorDetail", caught.exception.status_details)
        request = Session(self.client, self.shard).request()
        request.range.end += 1
        with self.assertRaises(Refused) as caught:
            self.client.open(request)
        self.assertEqual(caught.exception.text, "RANGE_MISMATCH")

    def test_tokens_come_out_and_the_digest_is_ours(self):
        if not self.is_tail:
            self.skipTest("only the tail samples")
        session = self.session()
        step = session.prefill([1, 2, 3])
        step.sampling.CopyFrom(greedy())
        result = session.forward(self.stream, step)
        self.assertEqual((result.past_len, result.digest), (3, prefix_digest(b"", [1, 2, 3])))
        token = result.sampled[0].token
        for _ in range(5):
            result = session.forward(self.stream, session.decode(token))
            token = result.sampled[0].token
        # The same tokens in one prefill, under another session, sample the same next token.
        other = self.session()
        step = other.prefill(session.log)
        step.sampling.CopyFrom(greedy())
        self.assertEqual(other.forward(self.stream, step).sampled[0].token, token)
        self.assertEqual(self.client.open(session.request()).digest, prefix_digest(b"", session.log))

    def test_salt_separates_owners(self):
        session = Session(self.client, self.shard)
        session.salt = b"owner"
        session.open()
        result = session.forward(self.stream, session.prefill([1, 2]))
        self.assertEqual(result.digest, prefix_digest(b"owner", [1, 2]))
        self.assertNotEqual(result.digest, prefix_digest(b"", [1, 2]))

    def test_another_salt_is_another_session(self):
        session = Session(self.client, self.shard)
        session.salt = b"owner"
        session.open()
        session.forward(self.stream, session.prefill([1, 2]))
        before = self.observe(session)
        request = session.request()
        request.cache_salt = b"thief"
        with self.assertRaises(Refused) as caught:
            self.client.open(request)
        self.assertEqual((caught.exception.text, caught.exception.code), ("BAD_REQUEST", grpc.StatusCode.INVALID_ARGUMENT))
        self.assertEqual(self.observe(session), before)
        step = session.decode(3)
        step.prefix_digest = prefix_digest(b"thief", session.log)
        self.assert_refused(session, step, "CACHE_MISS/DIGEST_MISMATCH", grpc.StatusCode.ABORTED)

    def test_steps_of_several_sessions_share_a_message(self):
        sessions = [self.session() for _ in range(3)]
        bad = sessions[1].prefill([-1])
        ids = self.stream.send([sessions[0].prefill([1, 2]), bad, sessions[2].prefill([3])])
        self.assertEqual(self.stream.answer(ids[2]).result.past_len, 1)
        self.assertEqual(describe(self.stream.answer(ids[1]).error), "BAD_REQUEST/TOKEN")
        self.assertEqual(self.stream.answer(ids[0]).result.past_len, 2)

    def test_refusals_change_nothing(self):
        session = self.session()
        session.forward(self.stream, session.prefill([1, 2, 3]))
        codes = grpc.StatusCode
        for name, spoil, text, code in [
            ("incarnation", lambda s: setattr(s, "incarnation", b"x" * 16), "CACHE_MISS/INCARNATION", codes.ABORTED),
            ("session", lambda s: setattr(s.ref, "route_session_id", b"x" * 16), "CACHE_MISS/NO_SESSION", codes.ABORTED),
            ("past", lambda s: setattr(s, "start_pos", 9), "CACHE_MISS/PAST_MISMATCH", codes.ABORTED),
            ("digest", lambda s: setattr(s, "prefix_digest", b"x" * 16), "CACHE_MISS/DIGEST_MISMATCH", codes.ABORTED),
            ("gap", lambda s: setattr(s, "step_seq", 9), "STEP_GAP", codes.OUT_OF_RANGE),
            ("conflict", lambda s: setattr(s, "step_seq", 1), "STEP_CONFLICT", codes.ALREADY_EXISTS),
            ("token", lambda s: s.tokens.__setitem__(0, self.shard.vocabulary_size), "BAD_REQUEST/TOKEN", codes.INVALID_ARGUMENT),
            ("negative token", lambda s: s.tokens.__setitem__(0, -1), "BAD_REQUEST/TOKEN", codes.INVALID_ARGUMENT),
            ("decode of two", lambda s: s.tokens.append(1), "BAD_REQUEST/SHAPE", codes.INVALID_ARGUMENT),
            ("start missing", lambda s: s.ClearField("start_pos"), "BAD_REQUEST/SHAPE", codes.INVALID_ARGUMENT),
            ("kind", lambda s: setattr(s, "kind", 77), "BAD_REQUEST/SHAPE", codes.INVALID_ARGUMENT),
            ("rows", lambda s: setattr(s, "rows", 0), "BAD_REQUEST/SHAPE", codes.INVALID_ARGUMENT),
            ("no session id", lambda s: s.ClearField("ref"), "BAD_REQUEST/SHAPE", codes.INVALID_ARGUMENT),
            ("epoch 0", lambda s: setattr(s.ref, "route_epoch", 0), "BAD_REQUEST/SHAPE", codes.INVALID_ARGUMENT),
            ("step 0", lambda s: setattr(s, "step_seq", 0), "BAD_REQUEST/SHAPE", codes.INVALID_ARGUMENT),
            ("sampling without values", lambda s: s.sampling.SetInParent(), "BAD_REQUEST/LIMIT" if self.is_tail else "BAD_REQUEST/SHAPE", codes.INVALID_ARGUMENT),
        ]:
            with self.subTest(name):
                step = session.decode(4)
                spoil(step)
                self.assert_refused(session, step, text, code)
        self.assertEqual(session.forward(self.stream, session.decode(4)).past_len, 4)

    def test_a_lost_reply_is_replayed_once_committed(self):
        session = self.session()
        step = session.prefill([1, 2])
        if self.is_tail:
            step.sampling.CopyFrom(greedy())
        lost = Stream(self.client)
        first = lost.ask(step).result
        lost.end()
        before = self.client.stats().steps_committed
        again = self.stream.ask(step).result
        self.assertTrue(again.replayed)
        again.replayed = False
        self.assertEqual(again.SerializeToString(deterministic=True), first.SerializeToString(deterministic=True))
        self.assertEqual(self.client.stats().steps_committed, before)
        session.commit(step)
        session.acked = 1
        session.forward(self.stream, session.decode(5))
        self.assert_refused(session, step, "STEP_REPLY_GONE", grpc.StatusCode.FAILED_PRECONDITION)

    def test_credit_comes_back_with_acknowledgements_only(self):
        session = self.session()
        for token in range(self.shard.limits.window_steps):
            step = session.prefill([token])
            step.ack_seq = 0
            self.assertEqual(self.stream.said(step), "OK")
            session.commit(step)
        step = session.decode(1)
        step.ack_seq = 0
        for _ in range(3):
            error = self.assert_refused(session, step, "CREDIT_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertTrue(error.HasField("retry_after_ms"))
        step.ack_seq = self.shard.limits.window_steps
        self.assertEqual(self.stream.said(step), "OK")

    def test_context_has_an_end(self):
        session = Session(self.client, self.shard)
        session.open(reserve=4)
        session.forward(self.stream, session.prefill([1, 2, 3]))
        self.assert_refused(session, session.prefill([4, 5]), "CONTEXT_EXCEEDED", grpc.StatusCode.OUT_OF_RANGE)

    def test_epoch_duel(self):
        old = self.session()
        old.forward(self.stream, old.prefill([1, 2]))
        new = Session(self.client, self.shard, session_id=old.ref.route_session_id, epoch=2)
        self.assertEqual(new.open().superseded_epoch, 1)
        new.forward(self.stream, new.prefill([7]))
        self.assertEqual(self.stream.said(old.decode(3)), "EPOCH_STALE")
        with self.assertRaises(Refused) as caught:
            old.open()
        self.assertEqual((caught.exception.text, caught.exception.detail.fence_epoch), ("EPOCH_STALE", 2))
        self.assertEqual(self.client.release(old.ref), pb.RELEASE_EPOCH_STALE)
        self.assertEqual(new.forward(self.stream, new.decode(8)).past_len, 2)
        self.assertEqual(self.client.release(new.ref), pb.RELEASED)
        self.assertEqual(self.client.release(new.ref), pb.NOT_FOUND)
        self.assertEqual(self.client.release(pb.SessionRef(route_session_id=os.urandom(16), route_epoch=1)), pb.NOT_FOUND)

    def test_going_back_truncates_only_this_session(self):
        session, other = self.session(), self.session()
        session.forward(self.stream, session.prefill([1, 2, 3, 4]))
        other.forward(self.stream, other.prefill([5, 6]))
        session.log = session.log[:2]
        self.assertEqual(session.forward(self.stream, session.prefill([9])).past_len, 3)
        self.assertEqual(self.client.open(other.request()).past_len, 2)

    def test_cancel_in_the_queue_has_no_effect(self):
        session = self.session()
        steps = []
        for _ in range(3):
            steps.append(session.prefill([1, 2]))
            session.commit(steps[-1])
        # In one message the cancel acts before any of its steps can have run.
        ids = self.stream.send(steps, cancels=[session.ref])
        for request_id in ids:
            self.assertEqual(describe(self.stream.answer(request_id).error), "STEP_CANCELLED")
        self.assertEqual((session.open().past_len, session.next), (0, 1))

    def test_a_stream_that_ends_ends_no_session(self):
        session = self.session()
        stream = Stream(self.client)
        session.forward(stream, session.prefill([1, 2]))
        ids = stream.send([session.decode(3)])
        stream.finish()
        self.assertEqual(stream.answer(ids[0]).result.past_len, 3)
        self.assertEqual(list(stream.call), [])
        self.assertEqual(stream.call.code(), grpc.StatusCode.OK)
        self.assertEqual(session.open().past_len, 3)

    def test_bytes_that_are_no_message(self):
        session = self.session()
        raw = self.client.channel.stream_stream("/meshnet.shard.v1.Shard/Forward")
        # gRPC hands a message that does not parse to the worker as the end of the stream.
        self.assertEqual(list(raw(iter([b"\xff\xff\xff\xff garbage"]), timeout=30)), [])
        unary = self.client.channel.unary_unary("/meshnet.shard.v1.Shard/Open")
        with self.assertRaises(grpc.RpcError):
            unary(b"\xff\xff\xff\xff garbage", timeout=30)
        with self.assertRaises(grpc.RpcError) as caught:
            self.client.channel.unary_unary("/meshnet.shard.v1.Shard/PutKv")(b"", timeout=30)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        self.assertEqual(session.forward(self.stream, session.prefill([1])).past_len, 1)

    def test_health_and_drain(self):
        if arguments.target:
            self.skipTest("would drain the target")
        session = self.session()
        session.forward(self.stream, session.prefill([1]))
        watch = self.client.health.Watch(health_pb.HealthCheckRequest(service="meshnet.shard.v1.Shard"), timeout=30)
        self.assertEqual(next(watch).status, health_pb.HealthCheckResponse.SERVING)
        self.assertEqual(self.client.call(self.client.shard.Drain, pb.DrainRequest()).state, pb.SHARD_STATE_DRAINING)
        self.assertEqual(next(watch).status, health_pb.HealthCheckResponse.NOT_SERVING)
        self.assertEqual(self.client.health.Check(health_pb.HealthCheckRequest(), timeout=30).status, health_pb.HealthCheckResponse.NOT_SERVING)
        with self.assertRaises(Refused) as caught:
            self.session()
        self.assertEqual((caught.exception.text, caught.exception.code), ("DRAINING", grpc.StatusCode.UNAVAILABLE))
        self.assertEqual(session.forward(self.stream, session.decode(2)).past_len, 2)
        watch.cancel()
        # Told to go, the worker waits for this session, and ends when it is released.
        self.worker.process.send_signal(signal.SIGTERM)
        self.assertEqual(session.forward(self.stream, session.decode(3)).past_len, 3)
        self.assertEqual(self.client.release(session.ref), pb.RELEASED)
        self.assertEqual(self.worker.process.wait(timeout=60), 0)

    def test_the_idle_make_room(self):
        if arguments.target:
            self.skipTest("fills the worker")
        first = self.session()
        for _ in range(3):
            session = self.session()
            session.forward(self.stream, session.prefill([1]))
        self.session()
        self.assertEqual(self.stream.said(first.prefill([1])), "CACHE_MISS/EVICTED_LRU")
        stats = self.client.stats()
        self.assertEqual((stats.sessions_live, stats.evictions_lru, stats.kv_tokens_reserved), (4, 1, 256))


class RoleTest(WholeModelTest):
    """The same rules on one stage of several."""

    def setUp(self):
        if arguments.target:
            self.skipTest("the target has the role it has")
        super().setUp()


class HeadRoleTest(RoleTest):
    flags = ("--layers", "0:2")

    def test_the_head_takes_no_frame(self):
        session = self.session()
        step = session.prefill([1])
        step.input.CopyFrom(pb.Frame(layout_version=1, encoding=pb.ENCODING_F32, rows=1, width=self.shard.boundary_width,
                                     payload=bytes(4 * self.shard.boundary_width)))
        self.assert_refused(session, step, "BAD_REQUEST/SHAPE", grpc.StatusCode.INVALID_ARGUMENT)


class MiddleRoleTest(RoleTest):
    flags = ("--layers", "2:4")


class TailRoleTest(RoleTest):
    flags = ("--layers", "4:6")


del RoleTest  # unittest would run it too


class HeldEngineTest(ProtocolTest):
    """What happens to steps while the engine computes: its call waits as long as a file is there."""

    def setUp(self):
        if arguments.target:
            self.skipTest("needs an engine that can be held")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.slow_file = os.path.join(folder.name, "slow")
        self.flags = ("--slow-file", self.slow_file)
        super().setUp()
        self.addCleanup(self.let_go)

    def let_go(self):
        if os.path.exists(self.slow_file):
            os.remove(self.slow_file)

    def hold(self, stream, step):
        """Sends the step and returns when the engine stands in its call."""
        with open(self.slow_file, "w", encoding="ascii"):
            pass
        request_id = stream.send([step])[0]
        for _ in range(20_000):
            if os.path.exists(self.slow_file + ".waiting"):
                return request_id
            time.sleep(0.001)
        self.fail("the step did not reach the engine")

    def await_arrival(self):
        # A step without address is answered as soon as the worker reads it, behind all that was sent before.
        self.assertEqual(self.stream.said(pb.Step()), "BAD_REQUEST/SHAPE")

    def test_a_deadline_that_passes_in_the_queue(self):
        busy, late = self.session(), self.session()
        busy_id = self.hold(self.stream, busy.prefill([1]))
        step = late.prefill([1])
        step.deadline_ms = 1
        late_id = self.stream.send([step])[0]
        self.await_arrival()
        time.sleep(0.005)  # more than the deadline, which counts from an arrival that is past
        self.let_go()
        self.assertEqual(self.stream.answer(busy_id).result.past_len, 1)
        error = self.stream.answer(late_id).error
        self.assertEqual((describe(error), error.grpc_code), ("DEADLINE_EXCEEDED", grpc.StatusCode.DEADLINE_EXCEEDED.value[0]))
        self.assertEqual(late.open().past_len, 0)
        self.assertEqual(late.forward(self.stream, late.prefill([1])).past_len, 1)

    def test_a_cancel_while_a_step_executes(self):
        session = self.session()
        step = session.prefill([1, 2])
        running = self.hold(self.stream, step)
        session.commit(step)
        queued = self.stream.send([session.prefill([3])], cancels=[session.ref])[0]
        self.await_arrival()
        self.let_go()
        self.assertEqual(self.stream.answer(running).result.past_len, 2)
        error = self.stream.answer(queued).error
        self.assertEqual((describe(error), error.grpc_code), ("STEP_CANCELLED", grpc.StatusCode.CANCELLED.value[0]))
        self.assertEqual((session.open().past_len, session.next), (2, 2))

    def test_a_stream_lost_while_its_step_is_queued(self):
        busy, session = self.session(), self.session()
        session.forward(self.stream, session.prefill([7]))  # a session that is lost and opened again would show
        busy_id = self.hold(self.stream, busy.prefill([1]))
        step = session.prefill([1, 2])
        lost = Stream(self.client)
        lost.send([step])
        self.assertEqual(lost.said(pb.Step()), "BAD_REQUEST/SHAPE")  # it has arrived
        lost.end()
        for _ in range(20):  # most likely the worker has seen the end by then; what follows holds either way
            self.await_arrival()
        self.let_go()
        self.assertEqual(self.stream.answer(busy_id).result.past_len, 1)
        # Taken back or committed, never half: the session is there, and the same step brings it to the same place.
        self.assertIn(self.client.open(session.request()).past_len, (1, 3))
        self.assertIn(self.stream.said(step), ("OK", "REPLAYED"))
        self.assertEqual((self.client.open(session.request()).past_len, self.client.stats().steps_committed), (3, 3))

    def test_a_stream_lost_while_its_step_executes(self):
        session = self.session()
        step = session.prefill([1, 2])
        lost = Stream(self.client)
        self.hold(lost, step)
        lost.end()
        again = self.stream.send([step])[0]
        self.await_arrival()
        self.let_go()
        result = self.stream.answer(again).result
        self.assertEqual((result.past_len, result.replayed), (2, True))
        stats = self.client.stats()
        self.assertEqual((stats.steps_committed, stats.tokens_committed), (1, 2))


class MiddleTest(ProtocolTest):
    flags = ("--layers", "2:4")

    def setUp(self):
        if arguments.target:
            self.skipTest("needs a stage in the middle")
        super().setUp()

    def test_hidden_states_in_and_out(self):
        session = self.session()
        step = session.prefill([1, 2, 3])
        step.rows = pb.ROWS_WANTED_ALL
        result = session.forward(self.stream, step)
        frame = result.output
        self.assertEqual((frame.rows, frame.width, len(frame.payload)), (3, self.shard.boundary_width, 3 * self.shard.boundary_width * 4))
        values = struct.unpack(f"<{3 * frame.width}f", frame.payload)
        self.assertTrue(all(math.isfinite(value) for value in values))
        step = session.prefill([4])
        step.rows = pb.ROWS_WANTED_NONE
        self.assertFalse(session.forward(self.stream, step).HasField("output"))

    def test_frames_that_are_wrong(self):
        session = self.session()
        nan = struct.pack("<f", math.nan)
        for name, spoil, text in [
            ("missing", lambda s: s.ClearField("input"), "BAD_REQUEST/SHAPE"),
            ("rows", lambda s: setattr(s.input, "rows", 3), "BAD_REQUEST/SHAPE"),
            ("payload", lambda s: setattr(s.input, "payload", s.input.payload[:-1]), "BAD_REQUEST/SHAPE"),
            ("layout", lambda s: setattr(s.input, "layout_version", 0), "BAD_REQUEST/ENCODING"),
            ("bf16", lambda s: setattr(s.input, "encoding", pb.ENCODING_BF16), "BAD_REQUEST/ENCODING"),
            ("nan", lambda s: setattr(s.input, "payload", nan + s.input.payload[4:]), "BAD_REQUEST/NONFINITE"),
            ("logits", lambda s: setattr(s, "logits_wanted", True), "BAD_REQUEST/SHAPE"),
        ]:
            with self.subTest(name):
                step = session.prefill([1, 2])
                spoil(step)
                self.assert_refused(session, step, text, grpc.StatusCode.INVALID_ARGUMENT)
        step = session.prefill([1, 2])
        step.input.width *= 2
        self.assert_refused(session, step, "BOUNDARY_MISMATCH", grpc.StatusCode.FAILED_PRECONDITION)


class WholeStateTest(ProtocolTest):
    flags = ("--truncation", "whole")

    def setUp(self):
        if arguments.target:
            self.skipTest("needs a state that cannot be cut")
        super().setUp()

    def test_truncation_names_where_to_start(self):
        session = self.session()
        session.forward(self.stream, session.prefill([1, 2, 3]))
        step = session.prefill([9])
        step.start_pos = 2
        step.prefix_digest = prefix_digest(b"", [1, 2])
        error = self.assert_refused(session, step, "TRUNCATE_UNSUPPORTED", grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(error.nearest_past_len, 0)
        self.assertTrue(error.HasField("nearest_past_len"))
        session.log = []
        self.assertEqual(session.forward(self.stream, session.prefill([9])).past_len, 1)


def main():
    global arguments
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stubs", required=True, help="folder of the generated Python modules")
    parser.add_argument("--worker", help="program that is started as a worker")
    parser.add_argument("--target", help="HOST:PORT of a worker that runs already")
    arguments, rest = parser.parse_known_args()
    if bool(arguments.worker) == bool(arguments.target):
        parser.error("either --worker or --target")
    import_stubs(arguments.stubs)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
