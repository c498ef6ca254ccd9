// A value as chat templates see it: JSON's kinds, undefined, and the interpreter's objects.
// Strings, lists and maps are shared, so copying a Value is cheap; they never change once reachable
// from a template's context. Concurrent reading is safe; building and assigning one Value is not
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace aisp {

class Value {
 public:
  enum class Kind : uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kMap,
    kObject
  };
  using List = std::vector<Value>;
  class Map;
  class Object;

  // NOLINTBEGIN(google-explicit-constructor): scalars and containers stand for themselves in a
  // context
  Value() : v_(None{}) {}  // none
  Value(bool b) : v_(b) {}
  Value(int i) : v_(static_cast<int64_t>(i)) {}
  Value(int64_t i) : v_(i) {}
  Value(double d) : v_(d) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(std::string s) : v_(std::make_shared<const StringRep>(StringRep{std::move(s), false})) {}
  Value(List items);
  Value(Map map);
  Value(std::shared_ptr<Object> object) : v_(std::move(object)) {}
  // NOLINTEND(google-explicit-constructor)

  static Value Undefined(std::string message);
  static Value Tuple(List items);
  // A string from the filters safe and escape: "+" with a plain string escapes the latter for HTML.
  static Value Markup(std::string s);
  bool IsMarkup() const {
    return IsString() && std::get<std::shared_ptr<const StringRep>>(v_)->markup;
  }

  Kind kind() const { return static_cast<Kind>(v_.index()); }
  bool IsUndefined() const { return kind() == Kind::kUndefined; }
  bool IsNone() const { return kind() == Kind::kNone; }
  bool IsBool() const { return kind() == Kind::kBool; }
  bool IsInt() const { return kind() == Kind::kInt; }
  bool IsFloat() const { return kind() == Kind::kFloat; }
  bool IsNumber() const { return IsBool() || IsInt() || IsFloat(); }
  bool IsString() const { return kind() == Kind::kString; }
  bool IsList() const { return kind() == Kind::kList; }
  bool IsTuple() const { return IsList() && std::get<std::shared_ptr<ListRep>>(v_)->tuple; }
  bool IsMap() const { return kind() == Kind::kMap; }
  bool IsObject() const { return kind() == Kind::kObject; }

  // Each requires its kind.
  bool AsBool() const { return std::get<bool>(v_); }
  int64_t AsInt() const { return std::get<int64_t>(v_); }
  double AsFloat() const { return std::get<double>(v_); }
  const std::string& AsString() const {
    return std::get<std::shared_ptr<const StringRep>>(v_)->text;
  }
  const List& AsList() const { return std::get<std::shared_ptr<ListRep>>(v_)->items; }
  const Map& AsMap() const { return *std::get<std::shared_ptr<const Map>>(v_); }
  const std::shared_ptr<Object>& AsObject() const { return std::get<std::shared_ptr<Object>>(v_); }
  const std::string& UndefinedMessage() const { return *std::get<UndefinedRep>(v_).message; }

  // For the interpreter: a list made by a template, to which scalars may be appended.
  static Value GrowableList(List items);
  bool IsGrowable() const { return IsList() && std::get<std::shared_ptr<ListRep>>(v_)->growable; }
  List& GrowableItems() { return std::get<std::shared_ptr<ListRep>>(v_)->items; }

  // Nesting of lists and maps, 0 for a scalar. Builders must bound it: destructor and printing
  // recurse.
  uint32_t depth() const;

 private:
  struct None {};
  struct UndefinedRep {
    std::shared_ptr<const std::string> message;
  };
  struct StringRep {
    std::string text;
    bool markup = false;
  };
  struct ListRep {
    List items;
    uint32_t depth = 1;
    bool tuple = false;
    bool growable = false;
  };
  static std::shared_ptr<ListRep> MakeList(List items);

  // Alternatives in the order of Kind.
  std::variant<UndefinedRep, None, bool, int64_t, double, std::shared_ptr<const StringRep>,
               std::shared_ptr<ListRep>, std::shared_ptr<const Map>, std::shared_ptr<Object>>
      v_;
};

// String keys in insertion order.
class Value::Map {
 public:
  Map() = default;
  Map(std::initializer_list<std::pair<std::string, Value>> entries);

  // Sets or replaces.
  void Set(std::string key, Value value);
  // Null when absent.
  const Value* Find(std::string_view key) const;
  void Clear();
  size_t size() const { return entries_.size(); }
  uint32_t depth() const { return depth_; }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  size_t IndexOf(std::string_view key) const;

  std::vector<std::pair<std::string, Value>> entries_;
  // Used from a dozen entries on. Ordered, since clients could make hashes of keys collide.
  std::map<std::string, size_t, std::less<>> index_;
  uint32_t depth_ = 1;
};

// An object of the interpreter: a function, a namespace, a generator.
class Value::Object {
 public:
  virtual ~Object() = default;
  // As Python names the type, for messages.
  virtual std::string_view TypeName() const = 0;
  virtual uint32_t depth() const { return 1; }
};

// Python's name of a value's type: "str", "NoneType", ...
std::string_view PythonTypeName(const Value& value);

// A float as Python prints it: the shortest digits that read back equal, "1.0", "1e+16".
std::string PythonFloat(double d);

}  // namespace aisp
