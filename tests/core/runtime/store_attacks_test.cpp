// SPDX-License-Identifier: Apache-2.0
// What a folder that came from elsewhere may try, one test for each: docs/cuda.md, "What is kept".
// Everything here is owned by this user, as what a user downloads is.
#include <vector>

#include "store_fixture.h"

namespace ladder {
namespace {

using Attack = StoreTest;

TEST_F(Attack, a_kernel_that_another_users_ladder_wrote_is_not_loaded) {
  ask(stranger());  // whole, owned by this user, and not written with this user's key
  EXPECT_TRUE(stranger().find(key_).has_value());
  EXPECT_EQ(store().find(key_), std::nullopt);
  ask(store());
  EXPECT_EQ(compilations(), 2u);
  EXPECT_TRUE(store().find(key_).has_value());
  EXPECT_EQ(stranger().find(key_), std::nullopt);
}

TEST_F(Attack, a_kernel_without_a_code_is_not_loaded) {
  ask(store());
  const std::string about = contents(entry() / "about.json");
  const auto at = about.find("\"code\"");
  ASSERT_NE(at, std::string::npos);
  std::string renamed = about;
  renamed.replace(at, 6, "\"cord\"");
  put(entry() / "about.json", renamed);
  EXPECT_EQ(store().find(key_), std::nullopt);
}

TEST_F(Attack, it_is_loaded_where_the_caller_trusts_the_folder) {
  ask(stranger());
  EXPECT_TRUE(store({.trust_kernels = true}).find(key_).has_value());
  const long other = static_cast<long>(geteuid()) + 1;
  EXPECT_TRUE(store({.trust_kernels = true, .user = other}).find(key_).has_value());
}

TEST_F(Attack, an_altered_binary_is_not_loaded_though_its_digest_is_right) {
  ask(store());
  const std::string altered = "machine codf";
  std::string about = contents(entry() / "about.json");
  const std::string before = digest_of("machine code"), after = digest_of(altered);
  about.replace(about.find(before), before.size(), after);
  put(entry() / "kernel.cubin", altered);
  put(entry() / "about.json", about);
  EXPECT_EQ(store().find(key_), std::nullopt);
  EXPECT_EQ(store({.trust_kernels = true}).find(key_)->bytes, altered);  // only the code objects
}

TEST_F(Attack, a_spill_that_is_denied_is_not_believed) {
  store().find_or(key_, [] { return MachineCode{"machine code", 255, 8, 64, "", ""}; });
  std::string about = contents(entry() / "about.json");
  const std::string spills = "\"spill_bytes\": 64";
  about.replace(about.find(spills), spills.size(), "\"spill_bytes\": 0");
  put(entry() / "about.json", about);
  EXPECT_EQ(store().find(key_), std::nullopt);
}

// The whole entry, or any of its files, under the name of another kernel.
TEST_F(Attack, an_entry_of_another_kernel_is_not_loaded) {
  const KernelKey other = numbered(1);
  store().find_or(key_, [] { return MachineCode{"one", 40, 0, 0, "", ""}; });
  store().find_or(other, [] { return MachineCode{"two", 40, 0, 0, "", ""}; });
  const fs::path kept = folder_ / "kept";
  fs::copy(entry(), kept);
  const std::vector<std::vector<const char*>> parts{{"kernel.cubin"},
                                                    {"about.json"},
                                                    {"source.cu"},
                                                    {"kernel.cubin", "about.json"},
                                                    {"kernel.cubin", "source.cu"},
                                                    {"about.json", "source.cu"},
                                                    {"kernel.cubin", "about.json", "source.cu"}};
  for (const auto& names : parts) {
    for (const char* name : names) {
      fs::copy(entry(other) / name, entry() / name, fs::copy_options::overwrite_existing);
    }
    EXPECT_EQ(store().find(key_), std::nullopt) << names.front() << names.size();
    for (const char* name : names) {
      fs::copy(kept / name, entry() / name, fs::copy_options::overwrite_existing);
    }
    EXPECT_EQ(store().find(key_)->bytes, "one");
  }
}

TEST_F(Attack, truncated_files_are_not_loaded) {
  ask(store());
  for (const char* name : {"kernel.cubin", "about.json", "source.cu"}) {
    const std::string whole = contents(entry() / name);
    for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 40) {
      put(entry() / name, whole.substr(0, size));
      // Without the line break at its end about.json says the same.
      EXPECT_EQ(store().find(key_), std::nullopt) << name << " of " << size << " bytes";
    }
    put(entry() / name, whole);
    EXPECT_TRUE(store().find(key_).has_value());
  }
}

TEST_F(Attack, a_folder_that_others_may_write_is_neither_read_for_kernels_nor_written) {
  ask(store());
  for (const fs::path& open : {fs::path(place()), fs::path(place()) / "kernels", entry()}) {
    for (const mode_t mode : {0777, 0775, 0757, 0720}) {
      chmod(open.c_str(), mode);
      EXPECT_EQ(store().find(key_), std::nullopt) << open << std::oct << mode;
      const auto before = compilations();
      ask(store(), open == entry() ? key_ : numbered(1));
      EXPECT_EQ(compilations(), before + 1);
      if (open == entry()) {  // replaced by an entry that is ours alone
        EXPECT_TRUE(store().find(key_).has_value());
      } else {
        EXPECT_FALSE(fs::exists(entry(numbered(1)))) << open << std::oct << mode;
      }
      chmod(open.c_str(), 0755);
      EXPECT_TRUE(store().find(key_).has_value());
    }
  }
  chmod(place().c_str(), 0775);
  EXPECT_FALSE(store().writable());
  store().keep_plan("a", "tokens 8");
  EXPECT_FALSE(fs::exists(fs::path(place()) / "plans.json"));
}

TEST_F(Attack, a_folder_of_another_user_is_neither_read_for_kernels_nor_written) {
  ask(store());
  const KernelStore foreign = store({.user = static_cast<long>(geteuid()) + 1});
  EXPECT_FALSE(foreign.writable());
  EXPECT_EQ(foreign.find(key_), std::nullopt);
  EXPECT_EQ(ask(foreign).bytes, "machine code");
  EXPECT_EQ(compilations(), 2u);
}

// At every level: the store, its folder of kernels, an entry, a file.
TEST_F(Attack, symbolic_links_are_not_followed) {
  ask(store());
  const fs::path away = folder_ / "away";
  std::vector<fs::path> levels{place(), fs::path(place()) / "kernels", entry()};
  for (const char* name : {"kernel.cubin", "about.json", "source.cu"}) {
    levels.push_back(entry() / name);
  }
  for (const fs::path& level : levels) {
    fs::rename(level, away);
    fs::create_symlink(away, level);
    EXPECT_EQ(store().find(key_), std::nullopt) << level;
    EXPECT_TRUE(store({.trust_kernels = true}).find(key_).has_value()) << level;
    fs::remove(level);
    fs::rename(away, level);
    EXPECT_TRUE(store().find(key_).has_value());
  }
}

TEST_F(Attack, nothing_is_written_through_a_symbolic_link) {
  const fs::path victim = folder_ / "victim";
  fs::create_directory(victim);
  put(victim / "precious", "as it was");
  const auto untouched = [&] {
    return std::distance(fs::directory_iterator(victim), {}) == 1 &&
           contents(victim / "precious") == "as it was";
  };
  // The store itself, with what ends a path in other words.
  fs::create_symlink(victim, place());
  for (const char* end : {"", "/", "/.", "/./", "//"}) {
    const KernelStore linked(place() + end, {.key_folder = cache()});
    EXPECT_FALSE(linked.writable()) << end;
    ask(linked);
    linked.keep_plan("a", "tokens 8");
    EXPECT_TRUE(untouched()) << end;
  }
  fs::remove(place());
  // Its folder of kernels.
  fs::create_directory(place());
  fs::create_symlink(victim, fs::path(place()) / "kernels");
  ask(store());
  EXPECT_TRUE(untouched());
  fs::remove(fs::path(place()) / "kernels");
  // The entry, which is replaced, and not what it points at.
  fs::create_directory(fs::path(place()) / "kernels");
  fs::create_symlink(victim, entry());
  ask(store());
  EXPECT_TRUE(untouched());
  EXPECT_TRUE(store().find(key_).has_value());
  // The plans, the locks.
  fs::create_symlink(victim / "precious", fs::path(place()) / "plans.json");
  fs::create_symlink(victim / "new", fs::path(place()) / "plans.lock");
  fs::create_symlink(victim / "new",
                     fs::path(place()) / "kernels" / (numbered(1).digest() + ".lock"));
  store().keep_plan("a", "tokens 8");
  ask(store(), numbered(1));
  EXPECT_TRUE(untouched());
  EXPECT_EQ(store().plan("a"), "tokens 8");
}

// Staged names were the process number's; now nobody can know them. What looks like one is removed,
// and where it leads is not.
TEST_F(Attack, planted_staged_files_are_removed_and_not_followed) {
  const fs::path victim = folder_ / "victim";
  fs::create_directory(victim);
  put(victim / "kernel.cubin", "as it was");
  fs::create_directories(entry().parent_path());
  const std::string staged = entry().string() + "." + std::to_string(getpid()) + ".staged";
  fs::create_symlink(victim, staged);
  fs::create_symlink(victim, entry().string() + ".0123456789abcdef.staged");
  fs::create_directories(fs::path(place()) / "plans.json.1.staged" / "deep");
  fs::create_symlink(victim / "kernel.cubin",
                     place() + "/plans.json." + std::to_string(getpid()) + ".staged");
  ask(store());
  store().keep_plan("a", "tokens 8");
  EXPECT_EQ(contents(victim / "kernel.cubin"), "as it was");
  EXPECT_TRUE(store().find(key_).has_value());
  EXPECT_EQ(store().plan("a"), "tokens 8");
  for (const auto& left : fs::recursive_directory_iterator(place())) {
    EXPECT_FALSE(left.path().string().ends_with(".staged")) << left.path();
  }
}

TEST_F(Attack, a_file_with_a_second_name_is_not_written_into) {
  put(folder_ / "precious", "as it was");
  fs::create_directories(entry());
  for (const char* name : {"kernel.cubin", "about.json", "source.cu"}) {
    fs::create_hard_link(folder_ / "precious", entry() / name);
  }
  fs::create_hard_link(folder_ / "precious", fs::path(place()) / "plans.json");
  fs::create_hard_link(folder_ / "precious", fs::path(place()) / "plans.lock");
  fs::create_hard_link(folder_ / "precious", entry().string() + ".lock");
  ask(store());
  store().keep_plan("a", "tokens 8");
  EXPECT_EQ(contents(folder_ / "precious"), "as it was");
  EXPECT_TRUE(store().find(key_).has_value());
  EXPECT_EQ(store().plan("a"), "tokens 8");
}

// A pipe that nobody writes would be waited for for ever.
TEST_F(Attack, what_is_no_file_is_not_waited_for) {
  fs::create_directories(entry());
  for (const char* name : {"kernel.cubin", "about.json", "source.cu"}) {
    mkfifo((entry() / name).c_str(), 0600);
  }
  mkfifo((fs::path(place()) / "plans.json").c_str(), 0600);
  mkfifo((fs::path(place()) / "plans.lock").c_str(), 0600);
  mkfifo((entry().string() + ".lock").c_str(), 0600);
  EXPECT_EQ(store().plan("a"), std::nullopt);
  EXPECT_EQ(ask(store()).bytes, "machine code");
  store().keep_plan("a", "tokens 8");
  EXPECT_EQ(store().plan("a"), "tokens 8");
  EXPECT_TRUE(store().find(key_).has_value());
}

TEST_F(Attack, huge_files_are_not_read) {
  ask(store());
  store().keep_plan("a", "tokens 8");
  for (const fs::path& path : {entry() / "kernel.cubin", entry() / "about.json",
                               entry() / "source.cu", fs::path(place()) / "plans.json"}) {
    ASSERT_EQ(truncate(path.c_str(), off_t{1} << 40), 0);  // without a block on the disk
  }
  EXPECT_EQ(store().find(key_), std::nullopt);
  EXPECT_EQ(store().plan("a"), std::nullopt);
  ask(store());
  store().keep_plan("b", "tokens 8");
  EXPECT_TRUE(store().find(key_).has_value());
  EXPECT_EQ(store().plan("b"), "tokens 8");
}

TEST_F(Attack, plans_that_are_nested_a_million_deep_are_no_plans) {
  fs::create_directory(place());
  put(fs::path(place()) / "plans.json",
      "{\"format\": 1, \"plans\": " + std::string(1000000, '[') + std::string(1000000, ']') + "}");
  EXPECT_EQ(store().plan("a"), std::nullopt);
  store().keep_plan("a", "tokens 8");
  EXPECT_EQ(store().plan("a"), "tokens 8");
}

}  // namespace
}  // namespace ladder
