// The flags of one verb. Layers: flag, else environment (MESHNET_ and the long name in capitals), else the default.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshnet::cli {

// Names are CLI11's: "-t,--threads", or "MODEL" for a positional. Values are written by Parse and must outlive it. llama-server's short names
// of several letters (-ngl -ctk -ctv -fa -ub) are known for the flags that carry their long names.
class Arguments {
 public:
  Arguments(const std::string& verb, const std::string& summary);
  ~Arguments();

  void Text(const std::string& names, std::string* value, const std::string& help);
  // A text that the environment does not set: an output, a prompt.
  void LocalText(const std::string& names, std::string* value, const std::string& help);
  void Positional(const std::string& name, std::string* value, const std::string& help);
  void Positionals(const std::string& name, std::vector<std::string>* values, const std::string& help);
  void Number(const std::string& names, uint32_t* value, uint32_t least, uint32_t most, const std::string& help);
  void Signed(const std::string& names, int32_t* value, const std::string& help);
  void Real(const std::string& names, double* value, const std::string& help);
  void Switch(const std::string& names, bool* value, const std::string& help);
  void Choice(const std::string& names, std::string* value, const std::vector<std::string>& choices, const std::string& help);
  // Comma separated, or given several times.
  void List(const std::string& names, std::vector<std::string>* values, const std::string& help);
  void NumberList(const std::string& names, std::vector<uint32_t>* values, const std::string& help);

  // For the machinery between our own processes: not in --help, no environment.
  void HiddenInteger(const std::string& names, int32_t* value);
  void HiddenSwitch(const std::string& names, bool* value);

  // `argv` holds what follows the verb. Nothing: go on. Else the exit code: 0 after --help, 2 for a bad command line (with a usage line), 3 for
  // a bad environment value.
  std::optional<int> Parse(int argc, char** argv);
  // By flag or environment. After Parse.
  bool given(const std::string& name) const;
  bool from_command_line(const std::string& name) const;
  // A usage mistake that only the verb can see: prints it with the usage line; 2.
  int Usage(const std::string& mistake) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet::cli
