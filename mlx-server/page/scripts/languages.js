// The languages whose code is colored. A language is a list of rules: a kind and the source of a regular expression without groups.
// Where several rules match, the first one wins. A rule of the kind "open" begins a comment or string that may continue on later lines.
const NUMBER = [
  "number",
  String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*`,
];
const WORD = ["word", String.raw`[\p{L}_$@][\p{L}\p{N}_$]*!?`];
const DOUBLE = ["string", String.raw`"(?:\\.|[^"\\])*"?`];
const SINGLE = ["string", String.raw`(?<!\w)'(?:\\.|[^'\\])*'?`];
const SLASHES = ["comment", String.raw`\/\/.*`];
const HASH = ["comment", String.raw`(?<![\w$])#.*`];
const DASHES = ["comment", String.raw`--.*`];
const BLOCK = ["open", String.raw`\/\*`];
const ENDS = {
  "/*": ["*/", "comment"],
  '"""': ['"""', "string"],
  "'''": ["'''", "string"],
  "`": ["`", "string"],
  "<!--": ["-->", "comment"],
  "--[[": ["]]", "comment"],
  "{-": ["-}", "comment"],
};
const words = (text) => new Set(text.trim().split(/\s+/));
const C_WORDS = `
      if else for while do switch case default break continue return goto struct union enum typedef sizeof
      static const extern inline volatile unsigned signed void int char short long float double bool true
      false NULL nullptr class public private protected virtual override template typename namespace using
      new delete this try catch throw auto constexpr noexcept operator friend explicit final concept
      requires co_await co_return co_yield`;
const JS_WORDS = `
      const let var function return if else for while do switch case default break continue class extends
      new this super import export from as async await yield try catch finally throw typeof instanceof in
      of delete void null undefined true false static get set interface type enum implements private
      public protected readonly declare namespace abstract keyof satisfies`;
const JAVA_WORDS = `
      package import class interface enum record extends implements public private protected static final
      abstract void int long short byte char float double boolean var new return if else for foreach while
      do switch case default break continue try catch finally throw throws this super null true false
      instanceof synchronized volatile using namespace string object out ref is as async await get set
      struct override virtual sealed readonly fun val when object companion data suspend internal open
      lateinit def trait match given let func guard protocol extension self nil in where yield`;
const cLike = (keywords, ...more) => ({
  keywords: words(keywords),
  rules: [...more, SLASHES, BLOCK, DOUBLE, SINGLE, NUMBER, WORD],
});
const hashed = (keywords, ...more) => ({
  keywords: words(keywords),
  rules: [...more, HASH, DOUBLE, SINGLE, NUMBER, WORD],
});
const LANGUAGES = {
  c: cLike(C_WORDS, ["keyword", String.raw`^\s*#\s*\w+`]),
  js: cLike(JS_WORDS, ["open", "`"]),
  java: cLike(JAVA_WORDS, ["open", '"""']),
  go: cLike(
    `
      package import func return if else for range switch case default break continue go defer select chan
      map struct interface type var const nil true false fallthrough goto string int int64 int32 uint8
      byte rune bool error float64 any`,
    ["open", "`"],
  ),
  rust: {
    keywords: words(
      `
      as async await break const continue crate dyn else enum extern false fn for if impl in let loop
      match mod move mut pub ref return self Self static struct super trait true type unsafe use where
      while bool char str u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64`,
    ),
    // An apostrophe begins a character or a lifetime.
    rules: [
      SLASHES,
      BLOCK,
      DOUBLE,
      ["string", String.raw`'(?:\\.[^']{0,8}|[^'\\])'`],
      ["type", String.raw`'[\p{L}_]\w*`],
      ["comment", String.raw`#!?\[.*?\]`],
      NUMBER,
      WORD,
    ],
  },
  python: hashed(
    `
      and as assert async await break class continue def del elif else except False finally for from
      global if import in is lambda match None nonlocal not or pass raise return self True try while with
      yield`,
    ["open", `"""|'''`],
  ),
  ruby: hashed(
    `
      alias and begin break case class def do else elsif end ensure false for if in module next nil not or
      puts raise redo require rescue retry return self super then true undef unless until when while yield
      attr_accessor`,
  ),
  shell: {
    keywords: words(
      `
      if then else elif fi for while until do done case esac in function return local export set unset
      source alias cd echo exit eval exec read shift sudo trap test printf`,
    ),
    rules: [
      HASH,
      DOUBLE,
      ["string", "'[^']*'?"],
      ["name", String.raw`\$\w+|\$\{[^}]*\}|\$[@#?*$!]`],
      ["type", String.raw`(?<![\w-])--?[a-zA-Z][\w-]*`],
      ["word", String.raw`[\w./-]+`],
    ],
  },
  sql: {
    keywords: words(
      `
      select from where and or not in is null as join left right inner outer full on group by order having
      limit offset insert into values update set delete create table view index drop alter add primary key
      foreign references unique default distinct union all case when then else end exists between like
      with returning int integer text varchar boolean true false begin commit rollback`,
    ),
    ignoresCase: true,
    rules: [DASHES, BLOCK, SINGLE, DOUBLE, NUMBER, WORD],
  },
  lua: {
    keywords: words(
      `
      and break do else elseif end false for function goto if in local nil not or repeat return then true
      until while`,
    ),
    rules: [["open", String.raw`--\[\[`], DASHES, DOUBLE, SINGLE, NUMBER, WORD],
  },
  haskell: {
    keywords: words(
      `
      case class data deriving do else if import in infix infixl infixr instance let module newtype of
      then type where qualified`,
    ),
    rules: [["open", String.raw`\{-`], DASHES, DOUBLE, NUMBER, WORD],
  },
  html: {
    keywords: new Set(),
    rules: [
      ["open", "<!--"],
      ["keyword", String.raw`<[\/!?]?[A-Za-z][\w:.-]*|\/?>`],
      ["string", String.raw`(?<==)(?:"[^"]*"?|'[^']*'?)`],
      ["name", String.raw`[\w:@.-]+(?==)`],
      ["", String.raw`[\w:@.-]+`],
      ["number", String.raw`&#?\w+;`],
    ],
  },
  css: {
    keywords: new Set(),
    rules: [
      BLOCK,
      DOUBLE,
      SINGLE,
      ["keyword", String.raw`@[\w-]+|!important`],
      ["number", String.raw`#[\da-fA-F]{3,8}\b|-?\b\d[\d.]*(?:%|\w+)?`],
      ["type", String.raw`--[\w-]+`],
      ["name", String.raw`[\w-]+(?=:)`],
      ["", String.raw`[\w-]+`],
    ],
  },
  json: {
    keywords: words("true false null"),
    rules: [
      SLASHES,
      ["name", String.raw`"(?:\\.|[^"\\])*"(?=:)`],
      DOUBLE,
      ["number", String.raw`-?\b\d[\d.eE+-]*`],
      WORD,
    ],
  },
  yaml: {
    keywords: words("true false null yes no on off"),
    rules: [
      ["comment", String.raw`(?:^|(?<=\s))#.*`],
      ["name", String.raw`[\w./-]+(?=:(?:\s|$))`],
      ["name", String.raw`^\s*[\w."-]+(?=\s?=)`],
      ["keyword", String.raw`^\s*\[[^\]]*\]+`],
      ["open", `"""|'''`],
      DOUBLE,
      SINGLE,
      NUMBER,
      WORD,
    ],
  },
  diff: {
    keywords: new Set(),
    rules: [
      ["name", "^@@.*"],
      ["keyword", String.raw`^(?:\+\+\+|---|diff|index) .*`],
      ["string", String.raw`^\+.*`],
      ["number", "^-.*"],
    ],
  },
};
const LANGUAGE_NAMES = {
  c: "c cpp c++ cc cxx h hpp cuda metal glsl arduino objc objective-c",
  js: "js javascript mjs cjs jsx ts tsx typescript node",
  java: "java kotlin kt cs csharp c# swift scala dart php groovy zig",
  go: "go golang",
  rust: "rust rs",
  python: "python py python3 pyi ipython starlark",
  ruby: "ruby rb perl pl elixir ex r julia jl",
  shell: `
      sh bash zsh shell console terminal fish powershell ps1 dockerfile docker makefile make cmake nix`,
  sql: "sql sqlite postgres postgresql mysql",
  lua: "lua",
  haskell: "haskell hs elm",
  html: "html xml svg vue svelte xhtml plist",
  css: "css scss less",
  json: "json json5 jsonc jsonl",
  yaml: "yaml yml toml ini cfg conf properties",
  diff: "diff patch",
};
const languageByName = new Map(
  Object.entries(LANGUAGE_NAMES).flatMap(([language, names]) =>
    names.split(" ").map((it) => [it, LANGUAGES[language]]),
  ),
);
