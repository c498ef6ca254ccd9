// Chat templates that a grammar makes of the input's bytes, with values that it makes too: nearly
// all of them parse, so this tests the interpreter. None may crash, run forever, or produce a text
// or an error beyond its limit.
#include "common/check.h"
#include "common/strings.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/chat_template.h"

namespace aisp {
namespace {

constexpr int kMaxDepth = 6;
constexpr size_t kMaxSource = 16 << 10;

class ProgramMaker {
 public:
  explicit ProgramMaker(ByteSource* bytes) : bytes_(*bytes) {}

  std::string Program() {
    std::string out = "{% set ns = namespace(a=[], b='x', c={}) %}";
    while (!bytes_.spent() && out.size() < kMaxSource) out += Statement(0);
    return out;
  }
  Value Data(int depth) {
    switch (bytes_.Below(depth < 3 ? 8 : 6)) {
      case 0:
        return Value();
      case 1:
        return Value(bytes_.Flip());
      case 2:
        return Value(static_cast<int64_t>(bytes_.Number()));
      case 3:
        return Value(static_cast<double>(static_cast<int64_t>(bytes_.Number())) / 3);
      case 4:
        return Value(std::string(bytes_.Below(64), 'a'));
      case 5: {
        static constexpr const char* kTexts[] = {"", "user", "é\n<b>\"'", "{{ x }}", "a.b.c", "\\"};
        return Value(bytes_.Pick(kTexts));
      }
      case 6: {
        Value::List items;
        for (size_t n = bytes_.Below(6); n > 0; --n) items.push_back(Data(depth + 1));
        return Value(std::move(items));
      }
      default: {
        Value::Map map;
        for (size_t n = bytes_.Below(6); n > 0; --n) map.Set(Name(), Data(depth + 1));
        return Value(std::move(map));
      }
    }
  }

 private:
  std::string Name() {
    static constexpr const char* kNames[] = {"a", "b",  "c",       "m",        "s",    "l",
                                             "x", "ns", "loop",    "messages", "self", "caller",
                                             "f", "g",  "content", "role"};
    return bytes_.Pick(kNames);
  }
  std::string Literal() {
    static constexpr const char* kLiterals[] = {
        "0",       "1",     "-1", "2",   "1000",   "9223372036854775807",
        "1.5",     "1e308", "''", "'a'", "'a b,'", "none",
        "true",    "[]",    "{}", "()",  "'%s%d'", "'{}{0}'",
        "'éß\\n'", "'a.b'"};
    return bytes_.Pick(kLiterals);
  }
  std::string Arguments(int depth) {
    static constexpr const char* kNamed[] = {
        "",    "attribute=", "indent=",    "default=", "separators=", "reverse=",
        "by=", "width=",     "sort_keys=", "boolean=", "maxsplit=",   "d="};
    std::string out = "(";
    const size_t n = bytes_.Below(4);
    bool named = false;
    for (size_t i = 0; i < n; ++i) {
      const std::string name = bytes_.Pick(kNamed);
      named = named || !name.empty();
      // Arguments after a named one must be named too.
      const std::string prefix = !named ? "" : name.empty() ? "x" + std::to_string(i) + "=" : name;
      out += (i > 0 ? ", " : "") + prefix + Expression(depth + 1);
    }
    return out + ")";
  }
  std::string Filter(int depth) {
    static constexpr const char* kFilters[] = {
        "trim",      "tojson",     "default",    "string", "safe",       "replace",  "indent",
        "int",       "float",      "abs",        "round",  "attr",       "truncate", "center",
        "wordcount", "format",     "upper",      "lower",  "capitalize", "title",    "escape",
        "urlencode", "length",     "join",       "list",   "items",      "dictsort", "sort",
        "unique",    "groupby",    "min",        "max",    "sum",        "map",      "select",
        "reject",    "selectattr", "rejectattr", "first",  "last",       "reverse",  "batch",
        "slice",     "forceescape"};
    const std::string name = bytes_.Pick(kFilters);
    return name + (bytes_.Flip() ? Arguments(depth) : "");
  }
  std::string Method() {
    static constexpr const char* kMethods[] = {
        "strip",   "split",   "rsplit", "splitlines", "startswith",   "endswith",  "replace",
        "upper",   "title",   "find",   "rfind",      "index",        "count",     "join",
        "format",  "isdigit", "ljust",  "center",     "removeprefix", "partition", "rpartition",
        "append",  "copy",    "keys",   "values",     "items",        "get",       "pop",
        "changed", "cycle",   "index0", "length"};
    return bytes_.Pick(kMethods);
  }
  std::string Binary(int depth) {
    static constexpr const char* kOps[] = {" + ",  " - ",   " * ",  " / ",      " // ",
                                           " % ",  " ** ",  " ~ ",  " == ",     " < ",
                                           " in ", " and ", " or ", " not in ", " >= "};
    const std::string left = Expression(depth + 1);
    const std::string op = bytes_.Pick(kOps);
    return "(" + left + op + Expression(depth + 1) + ")";
  }
  std::string Test(int depth) {
    static constexpr const char* kTests[] = {"defined",  "none",     "string", "mapping",
                                             "iterable", "odd",      "upper",  "sameas",
                                             "in",       "callable", "number", "eq"};
    const std::string value = Expression(depth + 1);
    const std::string test = bytes_.Pick(kTests);
    return "((" + value + ") is " + test + "(" + Expression(depth + 1) + "))";
  }
  std::string GlobalCall(int depth) {
    static constexpr const char* kGlobals[] = {
        "range",        "namespace", "dict", "joiner", "raise_exception",
        "strftime_now", "loop",      "f",    "g",      "caller"};
    const std::string name = bytes_.Pick(kGlobals);
    return name + Arguments(depth);
  }
  std::string Expression(int depth) {
    if (depth >= kMaxDepth) return bytes_.Flip() ? Name() : Literal();
    const auto next = [&] { return Expression(depth + 1); };
    switch (bytes_.Below(20)) {
      case 0:
      case 1:
        return Literal();
      case 2:
      case 3:
        return Name();
      case 4:
        return Binary(depth);
      case 5:
        return "(" + next() + ")." + Name();
      case 6:
        return "(" + next() + ")." + Method();
      case 7:
      case 8: {
        const std::string target = next();
        const std::string method = Method();
        return "(" + target + ")." + method + Arguments(depth);
      }
      case 9: {
        const std::string target = next();
        return "(" + target + ")[" + next() + "]";
      }
      case 10: {
        const std::string target = next(), start = next(), stop = next();
        return "(" + target + ")[" + start + ":" + stop + (bytes_.Flip() ? "" : ":" + next()) + "]";
      }
      case 11:
      case 12: {
        const std::string value = next();
        return "(" + value + ") | " + Filter(depth);
      }
      case 13:
        return Test(depth);
      case 14: {
        const std::string a = next();
        return "[" + a + ", " + next() + "]";
      }
      case 15: {
        const std::string name = Name();
        return "{'" + name + "': " + next() + "}";
      }
      case 16: {
        const std::string yes = next(), when = next();
        return "(" + yes + " if " + when + " else " + next() + ")";
      }
      case 17:
        return GlobalCall(depth);
      case 18:
        return "-" + next();
      default:
        return "(not " + next() + ")";
    }
  }
  std::string Block(int depth) {
    std::string out;
    for (size_t n = bytes_.Below(4); n > 0 && depth < kMaxDepth; --n) out += Statement(depth + 1);
    return out;
  }
  std::string Statement(int depth) {
    switch (bytes_.Below(12)) {
      case 0:
        return "text\n";
      case 1:
      case 2:
        return "{{ " + Expression(1) + " }}";
      case 3: {
        const std::string name = Name();
        return "{% set " + name + " = " + Expression(1) + " %}";
      }
      case 4:
      case 5: {
        static constexpr const char* kMembers[] = {"a", "b", "c", "f", "l"};
        const std::string member = bytes_.Pick(kMembers);
        return "{% set ns." + member + " = " + Expression(1) + " %}";
      }
      case 6: {
        const std::string name = Name(), over = Expression(1);
        const std::string how = bytes_.Flip() ? " recursive" : "";
        return "{% for " + name + " in " + over + how + " %}" + Block(depth) + "{% endfor %}";
      }
      case 7: {
        // Repetition that costs as many steps, without a list.
        const std::string times = std::to_string(bytes_.Below(256));
        return "{% for i in range(" + times + ") %}" + Block(depth) + "{% endfor %}";
      }
      case 8: {
        const std::string when = Expression(1), yes = Block(depth);
        return "{% if " + when + " %}" + yes + "{% else %}" + Block(depth) + "{% endif %}";
      }
      case 9: {
        const std::string name = bytes_.Flip() ? "f" : "g";
        const std::string fallback = Expression(2);
        return "{% macro " + name + "(a, b=" + fallback + ") %}" + Block(depth) + "{% endmacro %}";
      }
      case 10: {
        const std::string filter = Filter(1);
        return "{% filter " + filter + " %}" + Block(depth) + "{% endfilter %}";
      }
      default: {
        const std::string args = Arguments(1);
        return "{% call f" + args + " %}" + Block(depth) + "{% endcall %}";
      }
    }
  }

  ByteSource& bytes_;
};

}  // namespace

void FuzzOne(std::string_view input) {
  ByteSource bytes(input);
  ProgramMaker maker(&bytes);
  Value::Map context;
  for (const char* name : {"m", "s", "l", "messages"}) context.Set(name, maker.Data(0));
  const std::string source = maker.Program();
  const auto program = ChatTemplate::Parse(source);
  if (!program) {
    AISP_CHECK(!program.error().message.empty());
    return;
  }
  RenderOptions options;
  options.max_steps = 20'000;
  options.max_output_bytes = 64 << 10;
  const auto text = program->Render(context, options);
  if (text) {
    AISP_CHECK(text->size() <= options.max_output_bytes);
    AISP_CHECK(IsValidUtf8(*text));
    // A rendering depends only on its input.
    const auto again = program->Render(context, options);
    AISP_CHECK(again && *again == *text);
  } else {
    AISP_CHECK(text.error().message.size() < 8192);
    AISP_CHECK(IsValidUtf8(text.error().message));
  }
}

}  // namespace aisp
