#include "common/structured_output/text_formats.h"

namespace tandem::structured_output {
namespace {

// Days of each month; 29 February only in leap years. Year 0000 is no year.
#define TANDEM_YEAR "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})"
#define TANDEM_LEAP_YEAR \
  "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define TANDEM_DATE                                                                      \
  "(?:" TANDEM_YEAR                                                                      \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
  "02-(?:0[1-9]|1\\d|2[0-8]))|" TANDEM_LEAP_YEAR "-02-29)"
#define TANDEM_TIME \
  "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define TANDEM_OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define TANDEM_IPV4 TANDEM_OCTET "(?:\\." TANDEM_OCTET "){3}"
#define TANDEM_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define TANDEM_HOST TANDEM_LABEL "(?:\\." TANDEM_LABEL "){0,6}"
#define TANDEM_H16 "[0-9A-Fa-f]{1,4}"

struct Entry {
  std::string_view name;
  FormatKind kind;
  std::string_view pattern;
};

// Where a format's language is not simple, the pattern takes a part of it that is: what it allows
// is always of the format.
constexpr Entry kFormats[] = {
    {"date", FormatKind::kPattern, TANDEM_DATE},
    {"time", FormatKind::kPattern, TANDEM_TIME},
    {"date-time", FormatKind::kPattern, TANDEM_DATE "T" TANDEM_TIME},
    {"duration", FormatKind::kPattern,
     "P(?:\\d{1,6}W|(?:\\d{1,6}Y(?:\\d{1,6}M(?:\\d{1,6}D)?)?|\\d{1,6}M(?:\\d{1,6}D)?|\\d{1,6}D)"
     "(?:T(?:\\d{1,6}H(?:\\d{1,6}M(?:\\d{1,6}S)?)?|\\d{1,6}M(?:\\d{1,6}S)?|\\d{1,6}S))?"
     "|T(?:\\d{1,6}H(?:\\d{1,6}M(?:\\d{1,6}S)?)?|\\d{1,6}M(?:\\d{1,6}S)?|\\d{1,6}S))"},
    {"uuid", FormatKind::kPattern,
     "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"ipv4", FormatKind::kPattern, TANDEM_IPV4},
    {"ipv6", FormatKind::kPattern,
     "(?:" TANDEM_H16 ":){7}" TANDEM_H16 "|(?:" TANDEM_H16 ":){1,6}(?::" TANDEM_H16
     "|:)|(?:" TANDEM_H16 ":){1,5}(?::" TANDEM_H16 "){2}|(?:" TANDEM_H16 ":){1,4}(?::" TANDEM_H16
     "){3}|(?:" TANDEM_H16 ":){1,3}(?::" TANDEM_H16 "){4}|(?:" TANDEM_H16 ":){1,2}(?::" TANDEM_H16
     "){5}|" TANDEM_H16 ":(?::" TANDEM_H16 "){6}|:(?::" TANDEM_H16 "){1,7}|::"},
    {"hostname", FormatKind::kPattern, TANDEM_HOST},
    {"email", FormatKind::kPattern,
     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}){0,2}"
     "@" TANDEM_HOST},
    {"uri", FormatKind::kPattern,
     "[A-Za-z][A-Za-z0-9+.-]{0,15}:(?://" TANDEM_HOST "(?::\\d{1,5})?)?"
     "(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*"
     "(?:\\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"
     "(?:#(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"},
    {"json-pointer", FormatKind::kPattern, "(?:/(?:[^~/\\x00-\\x1f]|~[01])*)*"},
    {"idn-email", FormatKind::kUnsupported, ""},
    {"idn-hostname", FormatKind::kUnsupported, ""},
    {"uri-reference", FormatKind::kUnsupported, ""},
    {"iri", FormatKind::kUnsupported, ""},
    {"iri-reference", FormatKind::kUnsupported, ""},
    {"uri-template", FormatKind::kUnsupported, ""},
    {"relative-json-pointer", FormatKind::kUnsupported, ""},
    {"regex", FormatKind::kUnsupported, ""},
};

}  // namespace

TextFormat FindFormat(std::string_view name) {
  for (const Entry& entry : kFormats) {
    if (entry.name == name) {
      return {entry.kind, entry.pattern};
    }
  }
  return {};
}

}  // namespace tandem::structured_output
