#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>

#include "base/status.h"
#include "cli/report.h"

namespace meshnet::cli {
namespace {

// CLI11 reads `-ngl 99` as `-n gl`; llama-server's spellings are kept by naming the long flag instead.
const std::map<std::string, std::string>& LongNames() {
  static const std::map<std::string, std::string> names = {
      {"-ngl", "--gpu-layers"},   {"-ctk", "--cache-type-k"}, {"-ctv", "--cache-type-v"}, {"-fa", "--flash-attn"},
      {"-ub", "--ubatch-size"},   {"-dev", "--device"},
  };
  return names;
}

std::string EnvironmentName(const std::string& long_name) {
  std::string name = "MESHNET_" + long_name;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// CLI11's messages carry line breaks and its own type words.
std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

struct Arguments::Impl {
  explicit Impl(const std::string& verb_name, const std::string& summary)
      : verb(verb_name), app(summary, "meshnet " + verb_name) {
    app.get_formatter()->column_width(38);
    app.set_help_flag("-h,--help", "Print this help");
  }

  // Whether the environment may set it, once its name is known.
  CLI::Option* WithEnvironment(CLI::Option* option) {
    if (!option->get_lnames().empty()) environment[option] = EnvironmentName(option->get_lnames().front());
    return option;
  }

  CLI::Option* Hidden(CLI::Option* option) { return option->group(""); }

  std::string verb;
  CLI::App app;
  std::map<CLI::Option*, std::string> environment;
  std::set<const CLI::Option*> set_by_environment;
};

Arguments::Arguments(const std::string& verb, const std::string& summary) : impl_(std::make_unique<Impl>(verb, summary)) {}
Arguments::~Arguments() = default;

void Arguments::Text(const std::string& names, std::string* value, const std::string& help) {
  impl_->WithEnvironment(impl_->app.add_option(names, *value, help)->capture_default_str());
}
void Arguments::LocalText(const std::string& names, std::string* value, const std::string& help) { impl_->app.add_option(names, *value, help); }
void Arguments::Positional(const std::string& name, std::string* value, const std::string& help) {
  impl_->app.add_option(name, *value, help)->required();
}
void Arguments::Positionals(const std::string& name, std::vector<std::string>* values, const std::string& help) {
  impl_->app.add_option(name, *values, help)->required();
}
void Arguments::Number(const std::string& names, uint32_t* value, uint32_t least, uint32_t most, const std::string& help) {
  CLI::Option* option = impl_->WithEnvironment(impl_->app.add_option(names, *value, help)->check(CLI::Range(least, most)));
  if (*value >= least) option->capture_default_str();  // else it stands for "not given"
}
void Arguments::Signed(const std::string& names, int32_t* value, const std::string& help) {
  impl_->WithEnvironment(impl_->app.add_option(names, *value, help)->capture_default_str());
}
void Arguments::Real(const std::string& names, double* value, const std::string& help) {
  impl_->WithEnvironment(impl_->app.add_option(names, *value, help)->capture_default_str());
}
void Arguments::Switch(const std::string& names, bool* value, const std::string& help) { impl_->app.add_flag(names, *value, help); }
void Arguments::Choice(const std::string& names, std::string* value, const std::vector<std::string>& choices, const std::string& help) {
  impl_->WithEnvironment(impl_->app.add_option(names, *value, help)->capture_default_str()->check(CLI::IsMember(choices)));
}
void Arguments::List(const std::string& names, std::vector<std::string>* values, const std::string& help) {
  impl_->WithEnvironment(impl_->app.add_option(names, *values, help)->delimiter(','));
}
void Arguments::NumberList(const std::string& names, std::vector<uint32_t>* values, const std::string& help) {
  impl_->WithEnvironment(impl_->app.add_option(names, *values, help)->delimiter(','));
}
void Arguments::HiddenInteger(const std::string& names, int32_t* value) { impl_->Hidden(impl_->app.add_option(names, *value)); }
void Arguments::HiddenSwitch(const std::string& names, bool* value) { impl_->Hidden(impl_->app.add_flag(names, *value)); }

std::optional<int> Arguments::Parse(int argc, char** argv) {
  std::vector<std::string> words;
  bool verbatim = false;
  for (int i = 0; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--") verbatim = true;
    auto long_name = LongNames().find(word);
    words.push_back(!verbatim && long_name != LongNames().end() ? long_name->second : word);
  }
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    impl_->app.parse(words);
  } catch (const CLI::CallForHelp&) {
    Print(impl_->app.help());
    return 0;
  } catch (const CLI::Error& error) {
    return Usage(OneLine(error.what()));
  }
  for (auto& [option, name] : impl_->environment) {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || option->count() > 0) continue;
    try {
      option->add_result(std::string(value));
      option->run_callback();
      impl_->set_by_environment.insert(option);
    } catch (const CLI::Error& error) {
      return Report(BadConfiguration("environment variable " + name + "=" + value + ": " + OneLine(error.what())));
    }
  }
  return std::nullopt;
}

bool Arguments::given(const std::string& name) const { return impl_->app.get_option(name)->count() > 0; }

bool Arguments::from_command_line(const std::string& name) const {
  return given(name) && !impl_->set_by_environment.contains(impl_->app.get_option(name));
}

int Arguments::Usage(const std::string& mistake) const {
  Say(impl_->verb + ": " + mistake);
  std::string line = "usage: meshnet " + impl_->verb;
  for (const CLI::Option* option : impl_->app.get_options()) {
    if (option->get_positional()) line += " " + option->get_name(true) + (option->get_items_expected_max() > 1 ? "..." : "");
  }
  Say(line + " [flags]; `meshnet " + impl_->verb + " --help` lists them");
  return static_cast<int>(StatusCode::kUsage);
}

}  // namespace meshnet::cli
