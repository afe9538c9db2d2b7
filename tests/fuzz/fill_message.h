// Fills a protobuf message from fuzzed bytes by reflection: each field may be set, to something
// small that is likely to mean something, or to anything.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>
#include <google/protobuf/message.h>

#include <string>

namespace ddprun::fuzz {

constexpr int kDepthMax = 6;

inline uint64_t Number(FuzzedDataProvider& data) {
  return data.ConsumeBool() ? data.ConsumeIntegralInRange<uint64_t>(0, 5)
                            : data.ConsumeIntegral<uint64_t>();
}

inline std::string Text(FuzzedDataProvider& data) {
  constexpr const char* kLikely[] = {"", "node0", "node1", "127.0.0.1", "nccl_id", "job1"};
  if (data.ConsumeBool()) return data.PickValueInArray(kLikely);
  return data.ConsumeRandomLengthString(64);
}

void Fill(google::protobuf::Message* message, FuzzedDataProvider& data, int depth = 0);

inline void FillField(google::protobuf::Message* message,
                      const google::protobuf::FieldDescriptor* field, FuzzedDataProvider& data,
                      int depth) {
  using F = google::protobuf::FieldDescriptor;
  const auto* r = message->GetReflection();
  const bool many = field->is_repeated();
  switch (field->cpp_type()) {
    case F::CPPTYPE_INT32: {
      const auto value = static_cast<int32_t>(Number(data));
      return many ? r->AddInt32(message, field, value) : r->SetInt32(message, field, value);
    }
    case F::CPPTYPE_INT64: {
      const auto value = static_cast<int64_t>(Number(data));
      return many ? r->AddInt64(message, field, value) : r->SetInt64(message, field, value);
    }
    case F::CPPTYPE_UINT32: {
      const auto value = static_cast<uint32_t>(Number(data));
      return many ? r->AddUInt32(message, field, value) : r->SetUInt32(message, field, value);
    }
    case F::CPPTYPE_UINT64: {
      const uint64_t value = Number(data);
      return many ? r->AddUInt64(message, field, value) : r->SetUInt64(message, field, value);
    }
    case F::CPPTYPE_DOUBLE: {
      const auto value = data.ConsumeBool() ? data.ConsumeFloatingPoint<double>()
                                            : static_cast<double>(Number(data));
      return many ? r->AddDouble(message, field, value) : r->SetDouble(message, field, value);
    }
    case F::CPPTYPE_FLOAT:
      return;
    case F::CPPTYPE_BOOL: {
      const bool value = data.ConsumeBool();
      return many ? r->AddBool(message, field, value) : r->SetBool(message, field, value);
    }
    case F::CPPTYPE_ENUM: {
      const auto value = static_cast<int>(Number(data));
      return many ? r->AddEnumValue(message, field, value) : r->SetEnumValue(message, field, value);
    }
    case F::CPPTYPE_STRING: {
      std::string value = Text(data);
      return many ? r->AddString(message, field, value) : r->SetString(message, field, value);
    }
    case F::CPPTYPE_MESSAGE:
      if (depth >= kDepthMax) return;
      return Fill(many ? r->AddMessage(message, field) : r->MutableMessage(message, field), data,
                  depth + 1);
  }
}

inline void Fill(google::protobuf::Message* message, FuzzedDataProvider& data, int depth) {
  const auto* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count() && data.remaining_bytes() > 0; ++i) {
    const auto* field = descriptor->field(i);
    if (field->real_containing_oneof() != nullptr) continue;
    // The generation is mostly the present one, or nothing would get past the gate.
    if (field->name() == "generation" && data.ConsumeIntegralInRange(0, 7) != 0) {
      message->GetReflection()->SetUInt64(message, field, 1);
      continue;
    }
    int times = data.ConsumeIntegralInRange(0, field->is_repeated() ? 3 : 1);
    while (times-- > 0) FillField(message, field, data, depth);
  }
  for (int i = 0; i < descriptor->real_oneof_decl_count(); ++i) {
    const auto* oneof = descriptor->oneof_decl(i);
    const int chosen = data.ConsumeIntegralInRange(0, oneof->field_count() - 1);
    FillField(message, oneof->field(chosen), data, depth);
  }
}

}  // namespace ddprun::fuzz
