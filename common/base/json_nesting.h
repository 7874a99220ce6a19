#pragma once

#include <string_view>

namespace tandem::base {

// Whether the JSON `text` opens more than `max_depth` objects and arrays inside each other. Reads
// it once without recursion, so that text that is not trusted can be bounded before a parser, and
// code that walks values recursively, sees it. Malformed text gets some answer; the parser judges.
bool NestsDeeperThan(std::string_view text, int max_depth);

}  // namespace tandem::base
