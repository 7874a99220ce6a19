#pragma once

#include <string>
#include <string_view>

namespace tandem::router {

// The HTML of a page, which loads nothing from elsewhere: `/` a chat with live plots, `/docs` the
// API's documentation.
std::string PageAt(std::string_view path);

}  // namespace tandem::router
