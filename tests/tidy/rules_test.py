#!/usr/bin/env python3
"""The rules themselves: each must find what it is for and leave the rest alone."""
import unittest

import docs
import functions
import layering
import layout
import sizes
import sources
import words

CPP_SAMPLE = """
#define MACRO(a, b) \\
  do { } while (0)
namespace tandem::x {
// A comment with { and ( and "quotes.
struct Point { int x = 0; int y{1}; };
enum class Kind { kOne, kTwo };
constexpr int kTable[] = {1, 2, 3};
using Callback = std::function<void(int, int)>;

class Thing : public Base {
 public:
  explicit Thing(int a, std::map<int, std::vector<int>> b = {}, Callback c = nullptr)
      : a_(a), b_{std::move(b)} {
    Run();
  }
  ~Thing() override = default;
  virtual absl::StatusOr<std::pair<int, int>> Six(int a, int b, int c, int d, int e, int f) const = 0;
  bool operator()(int a, int b) const { return a < b; }
  friend bool operator<(const Thing& x, const Thing& y) { return x.a_ < y.a_; }

 private:
  int a_;
  std::function<void(int, int)> callback_;
};

template <typename T, typename U>
auto Thing::Long(const T& value,
                 int count) const -> decltype(value) {
  auto inner = [&](int a, int b, int c, int d, int e, int f) { return '{'; };
  if (count > 0) {
    return value;
  }
  const char* text = R"(raw } text)";
  return value;
}
}  // namespace tandem::x

TEST(ThingTest, DoesIt) {
  EXPECT_EQ(1, 1);
}
"""


class Functions(unittest.TestCase):
    def test_cpp(self):
        found = {f.name: f for f in functions.cpp_functions(CPP_SAMPLE)}
        self.assertEqual(set(found), {"Thing", "~Thing", "Six", "operator()", "operator<", "Long", "ThingTest.DoesIt"})
        self.assertEqual(found["Thing"].parameters, 3)
        self.assertEqual(found["Thing"].lines, 4)
        self.assertEqual(found["Six"].parameters, 6)
        self.assertEqual(found["Six"].lines, 0)
        self.assertEqual(found["operator()"].parameters, 2)
        self.assertEqual((found["Long"].parameters, found["Long"].lines), (2, 10))
        self.assertEqual(found["ThingTest.DoesIt"].lines, 3)

    def test_a_braced_member_does_not_hide_the_body(self):
        code = "Foo::Foo(int a) : a_{a}, b_{1, 2} {\n" + "  Call();\n" * 80 + "}\nvoid Bar() {}\n"
        found = {f.name: f.lines for f in functions.cpp_functions(code)}
        self.assertEqual(found, {"Foo": 82, "Bar": 1})

    def test_python(self):
        found = functions.python_functions("class A:\n  def f(self, a, *b, c=1, **d):\n    pass\n")
        self.assertEqual([(f.name, f.parameters, f.lines) for f in found], [("f", 4, 2)])

    def test_literals_are_blanked_in_place(self):
        text = 'int a = 1\'000;  // "}\nchar b = \'"\'; const char* c = "/*{";\n'
        code = sources.without_literals(text)
        self.assertEqual(len(code), len(text))
        self.assertNotIn("{", code)
        self.assertIn("const char* c", code)


class Sizes(unittest.TestCase):
    def check(self, table, lines, function=None):
        exceptions = sizes.Exceptions(table)
        made = [functions.Function("F", 3, *function)] if function else []
        return [f.message for f in sizes.check_file("common/x.cc", made, lines, exceptions)], exceptions

    def test_limits(self):
        self.assertEqual(self.check({}, 500)[0], [])
        self.assertEqual(len(self.check({}, 501)[0]), 1)
        self.assertEqual(self.check({}, 10, (70, 5))[0], [])
        self.assertEqual(len(self.check({}, 10, (71, 6))[0]), 2)

    def test_exceptions_only_shrink(self):
        table = {"file_lines": {"common/x.cc": 600}}
        self.assertEqual(self.check(table, 600)[0], [])
        self.assertEqual(len(self.check(table, 601)[0]), 1)
        self.assertIn("lower", self.check(table, 599)[0][0])
        self.assertEqual(len(self.check(table, 400)[1].unused()), 1)

    def test_the_hard_limit_has_no_exception(self):
        self.assertEqual(len(self.check({"file_lines": {"common/x.cc": 801}}, 801)[0]), 1)


class Layering(unittest.TestCase):
    WRONG = [
        ("router/frontend/a.cc", "gpu_worker/engine/engine.h"), ("gpu_worker/service/a.cc", "cpu_attention_worker/server/b.h"),
        ("common/rpc/a.cc", "router/policy/b.h"), ("cli/serve/a.cc", "cpu_attention_worker/server/b.h"),
        ("gpu_worker/scheduler/a.cc", "gpu_worker/pipeline/pipeline_runner.h"), ("gpu_worker/scheduler/a.cc", "gpu_worker/device/stream.h"),
        ("gpu_worker/model/a.cc", "gpu_worker/pipeline/step_io.cc"), ("gpu_worker/ops/a.cc", "gpu_worker/model/b.h"),
        ("router/policy/a.cc", "router/fleet/b.h"), ("router/fleet/a.cc", "router/upstream/b.h"), ("gpu_worker/ops/matmul.cc", "cuda_runtime.h"), ("gpu_worker/ops/matmul.cc", "immintrin.h"),
        ("cpu_attention_worker/threading/a.cc", "hwloc.h"), ("router/frontend/a.cc", "prometheus/counter.h"),
        ("gpu_worker/engine/a.h", "tandem/v1/inference.pb.h"), ("router/policy/a.h", "grpcpp/grpcpp.h"),
        ("gpu_worker/scheduler/a.cc", "thread"), ("gpu_worker/kv/a.cc", "random"), ("gpu_worker/engine/engine_core.cc", "mutex"),
        ("common/kv_layout/a.cc", "common/base/log.h"), ("router/frontend/a.cc", "gtest/gtest.h"), ("router/frontend/a.cc", "spdlog/spdlog.h"),
    ]
    RIGHT = [
        ("cli/serve/a.cc", "gpu_worker/scheduler/scheduler.h"), ("gpu_worker/scheduler/a.cc", "gpu_worker/pipeline/step_mode.h"),
        ("gpu_worker/ops/matmul_cuda.cu", "cuda_runtime.h"), ("gpu_worker/device/cuda/stream.cc", "cuda.h"),
        ("common/attention_kernels/isa/avx512.cc", "immintrin.h"), ("common/attention_kernels/decode-inl.h", "immintrin.h"),
        ("common/topology/a.cc", "hwloc.h"), ("router/upstream/a.cc", "grpcpp/grpcpp.h"),
        ("gpu_worker/cost_model/profiler.cc", "chrono"), ("gpu_worker/engine/engine.cc", "thread"), ("gpu_worker/service/a.cc", "gpu_worker/ops/b.h"),
    ]

    def test_includes(self):
        for path, header in self.WRONG:
            self.assertIsNotNone(layering.include_finding(path, header), f"{path} including {header}")
        for path, header in self.RIGHT:
            self.assertIsNone(layering.include_finding(path, header), f"{path} including {header}")

    def test_finds_includes_and_clocks(self):
        text = '// #include "a.h"\n#include <b.h>\n  #  include "c/d.h"\n'
        self.assertEqual(layering.includes("x.cc", text), [(2, "b.h"), (3, "c/d.h")])
        self.assertEqual(len(sources.matches_in("x.cc", layering.CLOCKS, "a = std::chrono::steady_clock::now();")), 1)
        self.assertEqual(len(sources.matches_in("x.cc", layering.MMAP, "p = ::mmap(0); q = mmap (1); r = MapFile(x); s.mmap(1);")), 2)


class Words(unittest.TestCase):
    def test_unfinished(self):
        for text in ("// TO" "DO: x", "return Unimplemented(\"not imple" "mented\")", "a pla" "ceholder"):
            self.assertTrue(sources.matches_in("x.cc", words.UNFINISHED, text), text)
        self.assertFalse(sources.matches_in("x.cc", words.UNFINISHED, "autodoc, stubborn, method_is_todo"))

    def test_machine_paths(self):
        for text in ('"/wo' 'rk/main"', "cd /ho" "me/someone", "../sha" "red/goldens"):
            self.assertTrue(sources.matches_in("x.md", words.MACHINE_PATHS, text), text)
        self.assertFalse(sources.matches_in("x.md", words.MACHINE_PATHS, "gpu_wo" "rker/wo" "rk/ and http://x/wo" "rkers"))

    def test_switched_off(self):
        self.assertTrue(sources.matches_in("x.cc", words.SWITCHED_OFF, "TEST(A, DISA" "BLED_B)"))
        self.assertTrue(sources.matches_in("x.cc", words.SWITCHED_OFF, "GTEST_" "SKIP();"))
        self.assertFalse(sources.matches_in("x.cc", words.SWITCHED_OFF, "GTEST_" "SKIP()\n        << \"no GPU\";"))
        self.assertTrue(words.REASON.search("// reason: needs two nodes"))


class Docs(unittest.TestCase):
    def test_links(self):
        self.assertIsNone(docs.link_finding("tests/tidy/x.md", "tidy.py"))
        self.assertIsNone(docs.link_finding("README.md", "https://example.org/x"))
        self.assertIsNotNone(docs.link_finding("tests/tidy/x.md", "none.py"))
        self.assertIsNotNone(docs.link_finding("tests/data/goldens/README.md", "#no-such-heading"))
        self.assertIsNone(docs.link_finding("tests/data/goldens/README.md", "#limits-for-a-comparison"))

    def test_paths(self):
        files = ["common/base/clock.h", "common/base/clock.cc"]
        for name in ("common/base/", "common/base/clock", "common/*/clock.h", "common/base"):
            self.assertTrue(docs.path_exists(name, files), name)
        for name in ("common/base/cloc", "common/clock.h", "common/base/clock.cu"):
            self.assertFalse(docs.path_exists(name, files), name)
        self.assertEqual(docs.expand("a/{b,c}.h"), ["a/b.h", "a/c.h"])

    def test_slug(self):
        self.assertEqual(docs.slug("One step: plan, `run`"), "one-step-plan-run")


class Layout(unittest.TestCase):
    def test_places(self):
        self.assertEqual(layout.check_paths(["README.md", ".ci/run", "tests/e2e/a.py", "tests/CMakeLists.txt"]), [])
        self.assertEqual(len(layout.check_paths(["notes.txt", "lib/a.cc", "tests/extra/a.cc", "tests/a.cc"])), 4)


if __name__ == "__main__":
    unittest.main()
