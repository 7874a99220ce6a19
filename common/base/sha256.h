#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

// SHA-256 (FIPS 180-4) of `data` as 64 lower-case hex digits. For identity of contents, not
// secrets.
std::string Sha256Hex(std::string_view data);

}  // namespace tandem::base
