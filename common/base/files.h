#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::base {

// Writes `content` beside `path` and renames it into place: a reader sees all of it or nothing.
absl::Status WriteFileByRename(const std::string& path, std::string_view content);

// A port file: one line of ports with spaces between, put in place once all of them listen.
absl::Status WritePortFile(const std::string& path, const std::vector<int>& ports);
// NotFound while there is none; InvalidArgument for anything but `count` ports.
absl::StatusOr<std::vector<int>> ReadPortFile(const std::string& path, size_t count);

// What stands in the file from `from_offset` on, only the last `max_bytes` of it. NotFound and
// others by errno.
absl::StatusOr<std::string> ReadFileTail(const std::string& path, int64_t from_offset,
                                         size_t max_bytes);

}  // namespace tandem::base
