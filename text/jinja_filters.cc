#include "text/jinja_filters.h"

#include "common/strings.h"
#include "text/jinja_strings.h"

namespace aisp::jinja {

bool Flag(Interpreter& in, const Args& args, size_t i, std::string_view name, bool absent) {
  const Value* v = args.Find(i, name);
  return v != nullptr ? in.Truthy(*v) : absent;
}

Result<int64_t> Integer(Interpreter& in, const Args& args, size_t i, std::string_view name,
                        int64_t absent) {
  const Value* v = args.Find(i, name);
  if (v == nullptr || v->IsNone()) return absent;
  if (!v->IsInt()) return in.Fail("argument '" + std::string(name) + "' must be an integer");
  return v->AsInt();
}

Result<std::string> Text(Interpreter& in, const Args& args, size_t i, std::string_view name,
                         std::string_view absent) {
  const Value* v = args.Find(i, name);
  if (v == nullptr) return std::string(absent);
  return in.Str(*v);
}

Result<Value> Replaced(Interpreter& in, const std::string& s, const std::string& from,
                       const std::string& to, int64_t limit) {
  AISP_RETURN_IF_ERROR(in.ChargeSearch(s.size(), from.size()));
  // Replacing a short `from` can multiply the text, so the size is checked first.
  const uint64_t places = CountText(s, from, static_cast<long>(limit));
  AISP_RETURN_IF_ERROR(in.Charge(places));
  AISP_RETURN_IF_ERROR(in.Fits(s.size() - places * from.size() + places * to.size()));
  return in.Checked(Value(ReplaceLimited(s, from, to, static_cast<long>(limit))));
}

Result<Value> Interpreter::ApplyFilter(const std::string& name, const Value& value,
                                       const Args& args) {
  AISP_RETURN_IF_ERROR(Charge(1));
  for (const std::span<const Filter> filters : {TextFilters(), ListFilters()}) {
    for (const Filter& filter : filters) {
      if (filter.name == name) return filter.apply(*this, value, args);
    }
  }
  return Fail("no filter named '" + Excerpt(name) + "'");
}

}  // namespace aisp::jinja
