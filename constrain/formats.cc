#include "constrain/formats.h"

#include <fmt/format.h>

#include <string>

#include "constrain/hostname.h"
#include "constrain/pattern.h"

namespace aisp {
namespace {

// RFC 3339, section 5.6; days of months and leap years of the proleptic Gregorian calendar.
const std::string& DatePattern() {
  static const std::string kPattern =
      "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
      "|"
      "02-(?:0[1-9]|1\\d|2[0-8]))|"
      "(?:\\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
  return kPattern;
}

constexpr char kOffset[] = "(?:[zZ]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
constexpr char kClock[] = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?";

std::string Two(int n) { return (n < 10 ? "0" : "") + std::to_string(n); }

// A leap second follows 23:59:59 UTC, so local hour, minute and offset must agree. Hours and
// minutes are intersected as two conditions, to avoid writing out all 2,880 combinations.
Result<TermId> LeapSecond(Languages* l) {
  std::string utc = "23:59:60(?:\\.\\d+)?[zZ]", west_hours, west_minutes, east_hours, east_minutes,
              east_whole;
  const std::string any = "(?:\\.\\d+)?";
  for (int h = 0; h < 24; ++h) {
    west_hours += (h ? "|" : "") + Two(h) + ":\\d\\d:60" + any + "-" + Two(23 - h) + ":\\d\\d";
    east_hours += (h ? "|" : "") + Two(h) + ":\\d\\d:60" + any + "\\+" + Two(h) + ":\\d\\d";
    east_whole += (h ? "|" : "") + Two(h) + ":59:60" + any + "\\+" + Two((h + 1) % 24) + ":00";
  }
  for (int m = 0; m < 60; ++m) {
    west_minutes +=
        (m ? "|" : "") + std::string("\\d\\d:") + Two(m) + ":60" + any + "-\\d\\d:" + Two(59 - m);
    if (m < 59) {
      east_minutes += (m ? "|" : "") + std::string("\\d\\d:") + Two(m) + ":60" + any +
                      "\\+\\d\\d:" + Two(m + 1);
    }
  }
  AISP_ASSIGN_OR_RETURN(const TermId z, CompileWholePattern(utc, l));
  AISP_ASSIGN_OR_RETURN(const TermId wh, CompileWholePattern(west_hours, l));
  AISP_ASSIGN_OR_RETURN(const TermId wm, CompileWholePattern(west_minutes, l));
  AISP_ASSIGN_OR_RETURN(const TermId eh, CompileWholePattern(east_hours, l));
  AISP_ASSIGN_OR_RETURN(const TermId em, CompileWholePattern(east_minutes, l));
  AISP_ASSIGN_OR_RETURN(const TermId ew, CompileWholePattern(east_whole, l));
  return l->Union({z, l->Intersect({wh, wm}), l->Intersect({eh, em}), ew});
}

Result<TermId> TimeLanguage(Languages* l) {
  AISP_ASSIGN_OR_RETURN(const TermId usual, CompileWholePattern(std::string(kClock) + kOffset, l));
  AISP_ASSIGN_OR_RETURN(const TermId leap, LeapSecond(l));
  return l->Union({usual, leap});
}

Result<TermId> DateTimeLanguage(Languages* l) {
  AISP_ASSIGN_OR_RETURN(const TermId date, CompileWholePattern(DatePattern() + "[tT]", l));
  AISP_ASSIGN_OR_RETURN(const TermId time, TimeLanguage(l));
  return l->Concat(date, time);
}

constexpr char kIpv4[] =
    "(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";

// RFC 4291, section 2.2.
std::string Ipv6Pattern() {
  const std::string h = "[0-9a-fA-F]{1,4}";
  const std::string tail = "(?:" + h + ":" + h + "|" + kIpv4 + ")";
  std::string out = "(?:(?:" + h + ":){6}" + tail;
  out += "|::(?:" + h + ":){5}" + tail;
  for (int before = 1; before <= 5; ++before) {
    const int after = 5 - before;
    out += fmt::format("|(?:(?:{0}:){{0,{1}}}{0})?::", h, before - 1);
    if (after > 0) out += fmt::format("(?:{}:){{{}}}", h, after);
    out += tail;
  }
  out += "|(?:(?:" + h + ":){0,5}" + h + ")?::" + h;
  out += "|(?:(?:" + h + ":){0,6}" + h + ")?::)";
  return out;
}

// RFC 3987, section 2.2: characters that an IRI allows beyond a URI's, and in its query only.
std::string CharactersOfIris() {
  std::string out = "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}";
  for (const char plane : std::string_view("123456789ABCD")) {
    out += std::string("\\u{") + plane + "0000}-\\u{" + plane + "FFFD}";
  }
  return out + "\\u{E1000}-\\u{EFFFD}";
}
constexpr char kPrivateOfIris[] = "\\u{E000}-\\u{F8FF}\\u{F0000}-\\u{FFFFD}\\u{100000}-\\u{10FFFD}";

// RFC 3986, appendix A. `relative`: also relative references. `international`: IRIs (RFC 3987).
std::string UriPattern(bool relative, bool international = false) {
  const std::string pct = "%[0-9a-fA-F]{2}";
  const std::string unreserved =
      std::string("a-zA-Z0-9._~\\-") + (international ? CharactersOfIris() : "");
  const std::string sub = "!$&'()*+,;=", query = international ? kPrivateOfIris : "";
  const std::string pchar = "(?:[" + unreserved + sub + ":@]|" + pct + ")";
  const std::string nc = "(?:[" + unreserved + sub + "@]|" + pct + ")";
  const std::string reg = "(?:[" + unreserved + sub + "]|" + pct + ")*";
  const std::string literal =
      "\\[(?:" + Ipv6Pattern() + "|[vV][0-9a-fA-F]+\\.[a-zA-Z0-9._~\\-" + sub + ":]+)\\]";
  const std::string user = "(?:(?:[" + unreserved + sub + ":]|" + pct + ")*@)?";
  const std::string authority = "//" + user + "(?:" + literal + "|" + reg + ")(?::\\d*)?";
  const std::string segments = "(?:/" + pchar + "*)*";
  const std::string tail =
      "(?:\\?(?:" + pchar + "|[/?" + query + "])*)?(?:#(?:" + pchar + "|[/?])*)?";
  const std::string hier = "(?:" + authority + segments + "|/(?:" + pchar + "+" + segments + ")?|" +
                           pchar + "+" + segments + "|)";
  std::string uri = "[a-zA-Z][a-zA-Z0-9+.-]*:" + hier + tail;
  if (!relative) return uri;
  const std::string part = "(?:" + authority + segments + "|/(?:" + pchar + "+" + segments + ")?|" +
                           nc + "+" + segments + "|)";
  return "(?:" + uri + "|" + part + tail + ")";
}

// RFC 6570, section 2: literals, and expressions in braces. Reserved operators are not allowed; an
// apostrophe is a literal, as in the erratum.
std::string UriTemplatePattern() {
  const std::string pct = "%[0-9a-fA-F]{2}";
  const std::string literal =
      "(?:[!#$&-;=?-\\[\\]_a-z~" + CharactersOfIris() + kPrivateOfIris + "]|" + pct + ")";
  const std::string letter = "(?:[a-zA-Z0-9_]|" + pct + ")";
  const std::string variable = letter + "(?:\\.?" + letter + ")*(?::[1-9]\\d{0,3}|\\*)?";
  return "(?:" + literal + "|\\{[+#./;?&]?" + variable + "(?:," + variable + ")*\\})*";
}

// RFC 5321, section 4.1.2: a dot-string or quoted string, @, and a host name or address literal.
std::string EmailPattern() {
  const std::string atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";
  const std::string quoted = "\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\"";
  const std::string label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
  return "(?:" + atom + "(?:\\." + atom + ")*|" + quoted + ")@(?:" + label + "(?:\\." + label +
         ")*|\\[" + kIpv4 + "\\]|\\[IPv6:" + Ipv6Pattern() + "\\])";
}

// ISO 8601 durations as RFC 3339, appendix A, has them.
constexpr char kDuration[] =
    "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)"
    "(?:T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))?"
    "|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))";

constexpr char kPointer[] = "(?:/(?:[^/~]|~[01])*)*";

}  // namespace

Result<TermId> FormatLanguage(std::string_view format, Languages* l) {
  if (format == "date-time") return DateTimeLanguage(l);
  if (format == "date") return CompileWholePattern(DatePattern(), l);
  if (format == "time") return TimeLanguage(l);
  if (format == "duration") return CompileWholePattern(kDuration, l);
  if (format == "email") return CompileWholePattern(EmailPattern(), l);
  if (format == "hostname") {
    if (KnowsHostnames()) return l->Hostname({});
    return Unimplemented("the format 'hostname' cannot be enforced without libidn2");
  }
  if (format == "ipv4") return CompileWholePattern(kIpv4, l);
  if (format == "ipv6") return CompileWholePattern(Ipv6Pattern(), l);
  if (format == "uri") return CompileWholePattern(UriPattern(false), l);
  if (format == "uri-reference") return CompileWholePattern(UriPattern(true), l);
  if (format == "iri") return CompileWholePattern(UriPattern(false, true), l);
  if (format == "iri-reference") return CompileWholePattern(UriPattern(true, true), l);
  if (format == "uri-template") return CompileWholePattern(UriTemplatePattern(), l);
  if (format == "json-pointer") return CompileWholePattern(kPointer, l);
  if (format == "relative-json-pointer") {
    return CompileWholePattern(std::string("(?:0|[1-9]\\d*)(?:#|") + kPointer + ")", l);
  }
  if (format == "uuid") {
    return CompileWholePattern("[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", l);
  }
  for (const std::string_view known : {"idn-email", "idn-hostname", "regex"}) {
    if (format == known) {
      return Unimplemented("the format '" + std::string(format) + "' cannot be enforced");
    }
  }
  return Languages::kAnyText;
}

}  // namespace aisp
