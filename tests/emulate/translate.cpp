// SPDX-License-Identifier: Apache-2.0
#include "translate.h"

#include <dlfcn.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "base/error.h"

namespace ladder::emulate {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void execute(const std::string& command, const fs::path& said) {
  if (std::system((command + " > " + said.string() + " 2>&1").c_str()) != 0) {
    fail<InternalError>("failed: ", command, "\n", read(said).substr(0, 4000));
  }
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// The end of the string or of the parentheses that begin at `at`.
std::size_t end_of(const std::string& text, std::size_t at) {
  if (text[at] == '"') {
    for (++at; text[at] != '"'; ++at) at += text[at] == '\\';
    return at + 1;
  }
  LADDER_CHECK(text[at] == '(', "no parenthesis");
  for (++at; text[at] != ')';) {
    at = text[at] == '(' || text[at] == '"' ? end_of(text, at) : at + 1;
  }
  return at + 1;
}

/// The operands of one section of an asm statement: what stands in parentheses behind a string.
void add_operands(const std::string& section, std::string& out) {
  for (std::size_t at = 0; at < section.size();) {
    if (section[at] == '(') {
      const auto end = end_of(section, at);
      out += (out.empty() ? "" : ", ") + section.substr(at, end - at);
      at = end;
    } else {
      at = section[at] == '"' ? end_of(section, at) : at + 1;
    }
  }
}

/// `statement` is what stands between the parentheses of asm.
std::string call_of(const std::string& statement) {
  std::vector<std::string> sections(1);
  for (std::size_t at = 0; at < statement.size();) {
    const char c = statement[at];
    if (c == ':') {
      sections.emplace_back();
      ++at;
      continue;
    }
    const auto end = c == '(' || c == '"' ? end_of(statement, at) : at + 1;
    sections.back() += statement.substr(at, end - at);
    at = end;
  }
  std::string operands;
  for (std::size_t i = 1; i < sections.size() && i < 3; ++i) add_operands(sections[i], operands);
  return "::ladder::emulate::ptx<" + sections[0] + ">(" + operands + ")";
}

/// A function that calls kernel `name` of `space`, its parameters read from an array.
std::string shim(const std::string& text, const std::string& name, const std::string& space) {
  const auto of_cuda = text.rfind("extern \"C\" __global__"), of_hip = text.rfind("KERNEL(");
  const auto begin = text.find(name + "(", of_cuda != std::string::npos ? of_cuda : of_hip);
  LADDER_CHECK(begin != std::string::npos, "no kernel ", name);
  const auto open = begin + name.size(), end = end_of(text, open);
  std::istringstream parameters(text.substr(open + 1, end - open - 2));
  std::string arguments, parameter;
  for (int i = 0; std::getline(parameters, parameter, ','); ++i) {
    parameter = std::regex_replace(parameter, std::regex("__restrict__"), "");
    while (is_word(parameter.back())) parameter.pop_back();
    const auto from = "parameters[" + std::to_string(i) + "]";
    const bool pointer = parameter.find('*') != std::string::npos;
    arguments += i == 0 ? "" : ", ";
    arguments += pointer ? "(" + parameter + ")" + from : "*(const " + parameter + "*)" + from;
  }
  return "namespace " + space + " { extern \"C\" void call_" + space +
         "(void* const* parameters) { " + name + "(" + arguments + "); } }\n";
}

/// Variables that are declared with `storage`, a pattern, as places of static_shared().
std::string with_static_shared(std::string text, const std::string& storage) {
  const std::regex variable(storage + " ((?:unsigned )?\\w+) (\\w+)((?:\\[[^\\]]*\\])*);");
  std::smatch found;
  for (int i = 0; std::regex_search(text, found, variable); ++i) {
    const auto place = "::ladder::emulate::static_shared(" + std::to_string(i % 4) + ")";
    text = found.prefix().str() + "auto& " + found[2].str() + " = *(" + found[1].str() + "(*)" +
           found[3].str() + ")" + place + ";" + found.suffix().str();
  }
  return text;
}

/// What the host's compiler would not understand of preprocessed HIP: accesses of shared memory by
/// address, its variables, and constants that are hidden from clang.
std::string without_hip(std::string text) {
  const auto replace = [&](const char* what, const char* by) {
    text = std::regex_replace(text, std::regex(what), by);
  };
  const std::string lds = R"(__attribute__\(\(address_space\(3\)\)\))",
                    shared = R"(__attribute__\(\(shared\)\))",
                    aligned = R"((?: __attribute__\(\(aligned\(\d+\)\)\))?)";
  replace(R"(extern "C" __attribute__\(\(global\)\))", "__attribute__((global))");
  replace((R"(\(u32\)\()" + lds + R"( const u8\*\)p)").c_str(), "::ladder::emulate::address_of(p)");
  replace((R"(\*\()" + lds + R"( (const )?(\w+)\*\)(\w+))").c_str(),
          "*::ladder::emulate::in_shared_memory<$1$2>($3)");
  replace(R"(asm(?: volatile)?\("" : "\+[sv]"\([^;]*\)\);)", "");
  replace(("extern " + shared + aligned + R"( unsigned char shared\[\];)").c_str(),
          "unsigned char* const shared = ::ladder::emulate::shared_memory();");
  return with_static_shared(std::move(text), shared + aligned);
}

/// The same of CUDA, beside asm.
std::string without_declarations(std::string text) {
  text = std::regex_replace(text, std::regex("extern \"C\" __global__"), "__global__");
  text = std::regex_replace(
      text, std::regex("extern __shared__ __align__\\(\\d+\\) unsigned char shared\\[\\];"),
      "unsigned char* const shared = ::ladder::emulate::shared_memory();");
  return with_static_shared(std::move(text), "__shared__(?: __align__\\(16\\))?");
}

/// The asm statements of preprocessed text as calls.
std::string without_asm(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      const auto end = end_of(text, at);
      out += text.substr(at, end - at);
      at = end;
      continue;
    }
    const bool begins = text.compare(at, 3, "asm") == 0 && (at == 0 || !is_word(text[at - 1])) &&
                        !is_word(text[at + 3]);
    if (!begins) {
      out += text[at++];
      continue;
    }
    const auto open = text.find('(', at), end = end_of(text, open);
    out += call_of(text.substr(open + 1, end - open - 2));
    at = end;
  }
  return out;
}

}  // namespace

std::vector<Kernel> load(const std::vector<Source>& sources, Language language, int capability) {
  const bool hip = language == Language::hip;
  std::string pattern = (fs::temp_directory_path() / "ladder-emulate-XXXXXX").string();
  LADDER_CHECK(mkdtemp(pattern.data()) != nullptr, "no folder like ", pattern);
  const fs::path folder = pattern;
  std::ofstream plain(folder / "plain.cpp");
  std::string shims;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto space = "kernel" + std::to_string(i);
    plain << "namespace " << space << " { using namespace ::ladder::emulate;\n"
          << (hip ? sources[i].text : without_declarations(sources[i].text)) << "}\n";
    shims += shim(sources[i].text, sources[i].name, space);
  }
  plain.close();
  const std::string compiler = LADDER_EMULATE_COMPILER " -std=c++20 -w ", said = folder / "said";
  const auto architecture = "-E -P -D__CUDA_ARCH__=" + std::to_string(10 * capability) + " ";
  execute(compiler + architecture + (folder / "plain.cpp").string() + " -o " +
              (folder / "expanded.cpp").string(),
          said);
  const auto expanded = read(folder / "expanded.cpp");
  std::ofstream(folder / "kernels.cpp")
      << (hip ? "#include \"hip_device.h\"\n" : "#include \"device.h\"\n")
      << (hip ? without_hip(expanded) : without_asm(expanded)) << shims;
  execute(compiler + "-O0 -shared -fPIC -I" LADDER_EMULATE_FOLDER " " +
              (folder / "kernels.cpp").string() + " -o " + (folder / "kernels.so").string(),
          said);
  void* library = dlopen((folder / "kernels.so").c_str(), RTLD_NOW);
  if (library == nullptr) fail<InternalError>(dlerror());
  std::vector<Kernel> kernels;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto name = "call_kernel" + std::to_string(i);
    kernels.emplace_back(reinterpret_cast<void (*)(void* const*)>(dlsym(library, name.c_str())));
  }
  fs::remove_all(folder);
  return kernels;
}

}  // namespace ladder::emulate
