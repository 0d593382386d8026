// A Refusal on the wire: ErrorDetail in a step's answer, and a status with trailers for a unary call (docs/protocol.md).
#pragma once

#include <optional>
#include <string>

#include "meshnet/shard/v1/shard.pb.h"
#include "protocol/refusal.h"

namespace meshnet {

// The gRPC status code of the protocol's error table.
int GrpcCode(Reason reason);
shard::v1::RetryClass RetryClassOf(Reason reason);

shard::v1::ErrorDetail ToProto(const Refusal& refusal);
// Nothing when the detail is malformed or its reason unknown: the caller then treats the answer as a transport fault.
std::optional<Refusal> FromProto(const shard::v1::ErrorDetail& detail);

// The trailer that carries a serialized ErrorDetail.
inline constexpr char kErrorTrailer[] = "meshnet-error-bin";
// The bytes of a google.rpc.Status with our ErrorDetail and, when there is a delay, a google.rpc.RetryInfo: what generic clients read
// (`grpc-status-details-bin`).
std::string StatusDetails(const Refusal& refusal);

}  // namespace meshnet
