#include "common/model_files/utf8.h"

#include <cstddef>

namespace tandem::model_files {

bool IsUtf8(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const unsigned char lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) {
      continue;
    }
    if (lead < 0xc2 || lead > 0xf4) {
      return false;
    }
    const int count = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    // The first continuation byte's range: narrower after four of the leads.
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (int k = 0; k < count; ++k) {
      const unsigned char byte = i < text.size() ? static_cast<unsigned char>(text[i++]) : 0;
      if (byte < low || byte > high) {
        return false;
      }
      low = 0x80;
      high = 0xbf;
    }
  }
  return true;
}

}  // namespace tandem::model_files
