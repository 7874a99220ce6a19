#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/status/status.h"

namespace tandem::structured_output {

// Ends a test that cannot go on because XGrammar is `missing`: it is skipped, or fails where the
// library has to be there (in CI, and where TANDEM_REQUIRE_XGRAMMAR is set).
inline void EndWithoutXGrammar(const absl::Status& missing) {
  if (std::getenv("CI") != nullptr || std::getenv("TANDEM_REQUIRE_XGRAMMAR") != nullptr) {
    FAIL() << missing.message() << "; scripts/install_dependencies.sh fetches it";
  }
  GTEST_SKIP() << "reason: " << missing.message();
}

}  // namespace tandem::structured_output
