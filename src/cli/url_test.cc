#include "cli/url.h"

#include <gtest/gtest.h>

namespace meshnet::cli {
namespace {

TEST(UrlTest, ReadsWhatPeopleType) {
  struct Row {
    const char* text;
    const char* base;  // null: refused
    const char* prefix;
  };
  for (const Row& row : {
           Row{"http://127.0.0.1:8080", "http://127.0.0.1:8080", ""}, Row{"http://127.0.0.1:8080/", "http://127.0.0.1:8080", ""},
           Row{"https://host/mesh/", "https://host:443", "/mesh"}, Row{"127.0.0.1:9", "http://127.0.0.1:9", ""}, Row{"host", "http://host:8080", ""},
           Row{"http://[::1]:5", "http://[::1]:5", ""}, Row{"ftp://host", nullptr, ""}, Row{"http://", nullptr, ""}, Row{"http://host:99999", nullptr, ""},
           Row{"unix:/run/x.sock", nullptr, ""}, Row{"", nullptr, ""},
       }) {
    std::optional<Url> url = ParseUrl(row.text);
    ASSERT_EQ(url.has_value(), row.base != nullptr) << row.text;
    if (!url) continue;
    EXPECT_EQ(url->scheme_and_authority, row.base) << row.text;
    EXPECT_EQ(url->path_prefix, row.prefix) << row.text;
  }
}

}  // namespace
}  // namespace meshnet::cli
