#!/usr/bin/env python3
"""Writes the first files of each corpus: one good input of each kind, and the lies that broke other programs. Findings are added beside them by hand."""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"


def write(boundary, files):
    folder = CORPUS / boundary
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


# ---- GGUF

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def key(name, kind, value):
    encoded = {U32: lambda: struct.pack("<I", value), I32: lambda: struct.pack("<i", value), F32: lambda: struct.pack("<f", value),
               BOOL: lambda: struct.pack("<B", value), STRING: lambda: text(value), U64: lambda: struct.pack("<Q", value), ARRAY: lambda: value}[kind]()
    return text(name) + struct.pack("<I", kind) + encoded


def array(kind, values):
    body = b"".join(text(v) if kind == STRING else struct.pack({BOOL: "<B", U32: "<I", I32: "<i", F32: "<f"}[kind], v) for v in values)
    return struct.pack("<IQ", kind, len(values)) + body


def tensor(name, dims, offset, kind=0):
    return text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset)


def gguf(keys, tensors, version=3, data=None, magic=b"GGUF", counts=None):
    infos, offset = b"", 0
    for name, dims, kind in tensors:
        infos += tensor(name, dims, offset, kind)
        size = 4
        for dim in dims:
            size *= dim
        offset += (size + 31) // 32 * 32
    tensor_count, key_count = counts or (len(tensors), len(keys))
    head = magic + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(keys) + infos
    head += b"\0" * (-len(head) % 32)
    return head + (b"\0" * offset if data is None else data)


def model(architecture="llama", layers=2, extra=()):
    width, vocabulary = 4, 3
    keys = [key("general.architecture", STRING, architecture), key("general.name", STRING, "seed")]
    for name, value in {"block_count": layers, "embedding_length": width, "context_length": 16, "feed_forward_length": 4, "attention.head_count": 2,
                        "attention.head_count_kv": 1}.items():
        keys.append(key(f"{architecture}.{name}", U32, value))
    keys += [key(f"{architecture}.attention.layer_norm_rms_epsilon", F32, 1e-5), *extra]
    tensors = [("token_embd.weight", (width, vocabulary), 0), ("output_norm.weight", (width,), 0), ("output.weight", (width, vocabulary), 0)]
    for layer in range(layers):
        for name, dims in {"attn_norm": (width,), "attn_q": (width, width), "attn_k": (width, 2), "attn_v": (width, 2), "attn_output": (width, width),
                           "ffn_norm": (width,), "ffn_gate": (width, 4), "ffn_up": (width, 4), "ffn_down": (4, width)}.items():
            tensors.append((f"blk.{layer}.{name}.weight", dims, 0))
    return keys, tensors


def gguf_seeds():
    keys, tensors = model()
    window = model("gemma3", 6, [key("gemma3.attention.sliding_window", U32, 8),
                                 key("gemma3.attention.sliding_window_pattern", ARRAY, array(BOOL, [1, 1, 0, 1, 1, 0]))])
    tokens = model(extra=[key("tokenizer.ggml.model", STRING, "llama"), key("tokenizer.ggml.tokens", ARRAY, array(STRING, ["<s>", "a", "b"]))])
    per_layer = model("deepseek2", 3, [key("deepseek2.leading_dense_block_count", U32, 1),
                                       key("deepseek2.expert_used_count", ARRAY, array(U32, [1, 1, 1]))])
    whole = gguf(keys, tensors)
    odd = [("t", (4,), 0), ("t", (4,), 0)]
    return {
        "llama": whole, "gemma3_window": gguf(*window), "with_tokens": gguf(*tokens), "deepseek2": gguf(*per_layer),
        "big_endian": gguf(keys, tensors, magic=b"FUGG"), "version_99": gguf(keys, tensors, version=99), "version_swapped": gguf(keys, tensors, version=0x03000000),
        "type_43": gguf(keys, [(name, dims, 43) for name, dims, _ in tensors]), "cut_off": whole[:len(whole) // 2], "no_data": whole[:-600],
        "two_of_a_name": gguf(keys, odd), "keys_that_are_not_there": gguf(keys, tensors, counts=(len(tensors), 1 << 40)),
        "tensors_that_are_not_there": gguf(keys, tensors, counts=(1 << 60, len(keys))), "dims_that_overflow": gguf(keys, [("t", (1 << 40, 1 << 40), 0)], data=b""),
        "array_of_arrays": gguf([key("a", ARRAY, struct.pack("<IQ", ARRAY, 1) + array(U32, [1]))], []),
        "long_array": gguf([key("a", ARRAY, struct.pack("<IQ", U32, 1 << 62))], []),
        "long_string": gguf([text("general.architecture") + struct.pack("<IQ", STRING, 0xffffffffffffffff)], []),
        "layers_0": gguf(*model(layers=0)), "empty": b"", "magic_alone": b"GGUF",
    }


# ---- protobuf, by hand: what matters is the bytes, not the library


def varint(value):
    out = b""
    while True:
        value, low = value >> 7, value & 0x7f
        out += bytes([low | (0x80 if value else 0)])
        if not value:
            return out


def field(number, value):
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value & 0xffffffffffffffff)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(fields):
    return b"".join(field(number, value) for number, value in fields)


def frame(rows=2, width=2, encoding=1, payload=None):
    payload = struct.pack(f"<{rows * width}f", *([0.5] * (rows * width))) if payload is None else payload
    return message([(1, 1), (2, encoding), (3, rows), (4, width), (5, payload)])


def step(seq=1, tokens=(1, 2), input=None, sampling=None, **more):
    fields = [(1, seq), (2, message([(1, b"s" * 16), (2, 1)])), (3, b"i" * 16), (4, seq), (5, 1), (6, 0), (7, b"d" * 16),
              (8, b"".join(varint(t & 0xffffffffffffffff) for t in tokens)), (10, 2)]
    if input is not None:
        fields.append((9, input))
    if sampling is not None:
        fields.append((12, sampling))
    return message(fields + [(number, value) for number, value in more.get("also", ())])


def sampling(**changes):
    values = {1: 7, 2: 2, 3: 0.8, 4: 0.0, 5: 1.0, 6: 40, 7: 0.95, 8: 0.05, 9: -1.0, 10: 1.0, 11: 0.0, 12: 0.1, 13: 0, 14: 64, 15: 1.0, 16: 0.0, 17: 0.0, 18: 0.0,
              19: 1.75, 20: 2, 21: 0, 23: 0, 24: 5.0, 25: 0.1, 26: -1.0, 27: 0.9}
    values.update(changes.get("change", {}))
    return message(list(values.items()) + list(changes.get("also", ())))


def shard_step_seeds():
    def request(*steps):
        return message([(1, s) for s in steps])
    grammar = sampling(also=[(22, "\n"), (30, message([(1, 3), (2, 1.5)])), (31, 'root ::= "a" | "b"'), (34, message([(1, 1), (2, "<tool>"), (3, 1)])),
                             (35, varint(1) + varint(2)), (36, "answer:"), (39, message([(1, varint(1))]))])
    return {
        "prefill": request(step(input=frame())), "decode_sampled": request(step(tokens=(1,), input=frame(1), sampling=sampling(), also=[(13, 1)])),
        "grammar": request(step(tokens=(1,), input=frame(1), sampling=grammar)), "two_and_a_cancel": request(step(1, input=frame()), step(2, input=frame()))
        + field(2, message([(1, message([(1, b"s" * 16), (2, 1)]))])),
        "frame_too_short": request(step(input=frame(payload=b"\0" * 8))), "frame_nan": request(step(input=frame(payload=struct.pack("<4f", 1, float("nan"), 1, 1)))),
        "frame_f16": request(step(input=frame(encoding=2))), "token_negative": request(step(tokens=(1, -1), input=frame())),
        "token_beyond": request(step(tokens=(1, 8), input=frame())), "rows_that_overflow": request(step(input=message([(1, 1), (2, 1), (3, 0xffffffff), (4, 0xffffffff)]))),
        "no_session": request(message([(1, 1), (4, 1)])), "temperature_nan": request(step(tokens=(1,), input=frame(1), sampling=sampling(change={3: float("nan")}))),
        "empty": b"",
    }


def shard_reply_seeds():
    limits = message([(1, 8), (2, 4096), (3, 32768), (4, 600), (5, 128), (6, 4), (7, 1 << 20)])
    numerics = message([(1, 1), (2, "tree"), (3, "CPU"), (4, "AVX2"), (5, 1), (6, 1), (7, "f16"), (8, "f16"), (9, 2), (10, 4096)])

    def describe(layers=(0, 2), count=4, name="seed", state=2):
        return message([(1, 1), (2, 0), (3, "build"), (4, b"i" * 16), (5, state), (6, 1), (7, b"r" * 32), (8, b"d" * 32), (9, name), (10, "llama"), (11, count),
                        (12, message([(1, layers[0]), (2, layers[1])])), (13, 2), (14, 8), (15, 1), (17, limits), (18, numerics), (19, 100), (25, varint(1))])
    result = message([(1, 1), (3, 2), (4, b"d" * 16), (5, frame()), (6, message([(1, 3), (3, -0.5), (4, message([(1, 3), (2, -0.5)]))])),
                      (7, message([(1, 5), (2, 64)])), (8, 16), (9, message([(1, 10), (2, 20)]))])
    error = message([(1, 1), (2, 4), (3, 3), (4, "position 5, not 3"), (6, b"i" * 16), (7, message([(1, 3), (2, b"d" * 16), (3, 2), (4, 5)])), (8, 3), (9, 100), (10, 10)])
    return {
        "describe": describe(), "describe_range_beyond": describe((0, 9)), "describe_range_backwards": describe((3, 1)), "describe_line_break": describe(name="a\nb\x1b[31m"),
        "describe_state_9": describe(state=9), "open": message([(1, b"i" * 16), (2, 3), (3, b"d" * 16), (4, 2), (5, message([(1, 5), (2, 64)])), (6, 64), (7, 1)]),
        "open_step_0": message([(1, b"i" * 16), (3, b"d" * 16)]), "answer": message([(1, message([(1, 1), (2, result)]))]),
        "answer_error": message([(1, message([(1, 1), (3, error)]))]), "answer_nothing": message([(1, message([(1, 1)]))]),
        "answer_frame_nan": message([(1, message([(1, 1), (2, message([(4, b"d" * 16), (5, frame(payload=struct.pack("<4f", 1, float("inf"), 1, 1)))]))]))]),
        "answer_token_negative": message([(1, message([(1, 1), (2, message([(4, b"d" * 16), (6, message([(1, -1)]))]))]))]),
        "answer_reason_99": message([(1, message([(1, 1), (3, message([(1, 99)]))]))]),
        "stats": message([(1, 2), (2, b"i" * 16), (3, 1), (4, 1), (5, 64), (6, 3), (7, 7), (17, message([(1, "capacity"), (2, 3)])),
                          (18, message([(1, "0123abcd"), (2, 1), (3, 3), (4, 64)]))]),
        "release": message([(1, 1)]), "empty": b"",
    }


# ---- OpenAI bodies


def openai_seeds():
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"type": "array", "items": {"enum": [1, "x", None]}, "maxItems": 3},
                                               "c": {"type": "string", "pattern": "^[a-z]{1,3}$"}}, "$defs": {"n": {"type": "integer", "minimum": 0}}}
    cycle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    user = [{"role": "user", "content": "hello"}]
    conversation = [{"role": "system", "content": "be short"}, *user,
                    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"X\"}"}}]},
                    {"role": "tool", "tool_call_id": "1", "content": "rain"}, {"role": "user", "content": [{"type": "text", "text": "and?"}]}]
    sampling_fields = {"temperature": 0.5, "top_k": 10, "top_p": 0.9, "min_p": 0.1, "seed": 4, "stop": ["\n", "x"], "logit_bias": {"5": -1, "a": False}, "n": 2,
                       "samplers": ["top_k", "temperature"], "dry_sequence_breakers": ["\n"], "repeat_last_n": 64}
    bodies = {
        "chat": {"messages": user, "stream": True, "stream_options": {"include_usage": True}},
        "conversation": {"messages": conversation, "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        "sampling": {"messages": user, **sampling_fields}, "schema": {"messages": user, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
        "schema_cycle": {"messages": user, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": cycle}}},
        "grammar": {"prompt": "a", "grammar": "root ::= ((((\"a\"))))"}, "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "completion": {"prompt": ["a", [1, 2, "b"], [3]], "logprobs": 2, "max_tokens": 4, "echo": False}, "token_beyond": {"prompt": [1, 256]},
        "unknown_field": {"messages": user, "frobnicate": 1}, "neutral": {"prompt": "a", "best_of": 2}, "wrong_types": {"messages": "hello", "n": "two", "stop": 7, "logit_bias": [[]]},
        "no_messages": {"messages": []}, "nulls": {"messages": user, "seed": None, "stop": None, "functions": None},
    }
    files = {name: json.dumps(body).encode() for name, body in bodies.items()}
    files |= {
        "deep": b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}", "two_of_a_key": b'{"prompt":"a","prompt":"b"}', "bad_utf8": b'{"prompt":"\xff\xfe"}',
        "surrogate": b'{"prompt":"\\ud800"}', "huge_number": b'{"prompt":"a","temperature":1e999}', "int_min": b'{"prompt":"a","seed":-9223372036854775808}',
        "not_json": b"hello", "array": b"[1]", "empty": b"", "cut_off": b'{"messages":[{"role":"user","content":"hel',
    }
    return files


# ---- command lists


def kv_seeds():
    """Where one byte leads depends on all before it, so these are only starting points: numbers of a fixed generator."""
    files = {"empty": b""}
    for seed in range(8):
        state, values = seed * 2654435761 + 1, bytearray()
        for _ in range(400):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            values.append(state >> 56)
        files[f"list_{seed}"] = bytes(values)
    return files


def main():
    write("gguf_header", gguf_seeds())
    write("shard_step", shard_step_seeds())
    write("shard_reply", shard_reply_seeds())
    write("openai_body", openai_seeds())
    write("kv_commands", kv_seeds())
    write("canary", {"near_miss": b"BOOL"})


if __name__ == "__main__":
    main()
