#pragma once

#include "router/frontend/json_text.h"

namespace tandem::router {

// Checks a chat's messages and brings them into the form that chat templates know: role and text
// content. 400 names the message that is wrong.
ApiResult NormalizeMessages(const Json& messages, Json* out);

}  // namespace tandem::router
