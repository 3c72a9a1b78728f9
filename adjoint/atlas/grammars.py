"""The languages that tree-sitter parses: for each, one query that says which nodes mean what.

A capture is the kind of name that a node defines, or one of these: `import`, `use`, `call`, `local`
(what a function declares for itself), `block` (a statement that nests), `container` (qualifies
names without being one), `message` (holds the text of an error), a key of `NOTES`, or a node whose
children decide the kind: `declaration`, `binding`, `parameter`.
"""

from __future__ import annotations

from dataclasses import dataclass

_C = """
(function_definition) @function
(declaration) @declaration
(type_definition) @type
(struct_specifier name: (_) body: (_)) @struct
(union_specifier name: (_) body: (_)) @union
(enum_specifier name: (_) body: (_)) @enum
(enumerator) @constant
(field_declaration) @declaration
(preproc_def) @macro
(preproc_function_def) @macro
(preproc_include) @import
(preproc_call directive: (preproc_directive) @_d (#match? @_d "error")) @message
(preproc_call directive: (preproc_directive) @_d argument: (preproc_arg) @_a
  (#match? @_d "pragma") (#match? @_a "omp|simd|unroll|ivdep|vector|clang loop|optimize")) @pragma
(call_expression) @call
[(identifier) (type_identifier)] @use
(parameter_declaration declarator: (_) @local)
(declaration declarator: (_) @local)
(cast_expression type: (type_descriptor declarator: (abstract_pointer_declarator))) @pointer_cast
[(if_statement) (for_statement) (while_statement) (do_statement) (switch_statement)] @block
"""
_CPP = (
    _C
    + """
(class_specifier name: (_) body: (_)) @class
(namespace_definition name: (_)) @namespace
(alias_declaration) @type
(concept_definition) @type
(qualified_identifier) @use
(optional_parameter_declaration declarator: (_) @local)
(for_range_loop declarator: (_) @local)
(throw_statement) @message
(static_assert_declaration) @message
(new_expression) @owned
(delete_expression) @owned
[(for_range_loop) (try_statement)] @block
"""
)
_JAVASCRIPT = """
[(function_declaration) (generator_function_declaration)] @function
(class_declaration) @class
(method_definition) @method
(variable_declarator) @binding
(import_statement) @import
(export_statement source: (_)) @import
(call_expression) @call
(new_expression) @construction
[(identifier) (member_expression)] @use
(formal_parameters) @local
(variable_declarator name: (_) @local)
(throw_statement) @message
(assignment_expression left: (member_expression property: (property_identifier) @_p
  (#match? @_p "^(innerHTML|outerHTML)$"))) @markup
[(if_statement) (for_statement) (for_in_statement) (while_statement) (do_statement)
 (switch_statement) (try_statement)] @block
"""
_FIELD = "(field_definition) @field\n"
_TYPESCRIPT = (
    _JAVASCRIPT
    + """
(function_signature) @function
(abstract_class_declaration) @class
(public_field_definition) @field
(interface_declaration) @interface
(type_alias_declaration) @type
(enum_declaration) @enum
(enum_body (property_identifier) @constant)
(enum_assignment) @constant
[(internal_module) (module)] @namespace
[(method_signature) (abstract_method_signature)] @method
(property_signature) @field
[(required_parameter) (optional_parameter)] @parameter
(type_identifier) @use
((as_expression) @assertion (#not-match? @assertion "as const$"))
(non_null_expression) @assertion
"""
)
_RUST = """
[(function_item) (function_signature_item)] @function
(struct_item) @struct
(union_item) @union
(enum_item) @enum
(trait_item) @trait
(impl_item) @container
(mod_item) @namespace
(const_item) @constant
(static_item) @variable
[(type_item) (associated_type)] @type
(macro_definition) @macro
(field_declaration) @field
(enum_variant) @constant
[(use_declaration) (extern_crate_declaration)] @import
(call_expression) @call
(macro_invocation) @call
[(identifier) (type_identifier) (scoped_identifier) (scoped_type_identifier)] @use
(let_declaration pattern: (_) @local)
(parameter pattern: (_) @local)
(unsafe_block) @unsafe
(pointer_type) @pointer
[(if_expression) (match_expression) (for_expression) (while_expression) (loop_expression)] @block
"""
_GO = """
(function_declaration) @function
(method_declaration) @method
(type_spec) @type
(type_alias) @type
(const_spec) @constant
(var_spec) @variable
(field_declaration) @field
(method_elem) @method
(package_clause) @namespace
(import_spec) @import
(call_expression) @call
[(identifier) (type_identifier) (selector_expression) (qualified_type)] @use
(short_var_declaration left: (_) @local)
(parameter_declaration name: (_) @local)
(range_clause left: (_) @local)
(go_statement) @goroutine
[(if_statement) (for_statement) (expression_switch_statement) (type_switch_statement)
 (select_statement)] @block
"""


@dataclass(frozen=True)
class Grammar:
    """How one language is parsed."""

    package: str
    """The module of the parser."""
    query: str
    separator: str = "."
    language: str = "language"
    """The function of the package that makes the parser."""


GRAMMARS = {
    "C": Grammar("tree_sitter_c", _C, "::"),
    "C++": Grammar("tree_sitter_cpp", _CPP, "::"),
    "CUDA": Grammar("tree_sitter_cuda", _CPP, "::"),
    "JavaScript": Grammar("tree_sitter_javascript", _JAVASCRIPT + _FIELD),
    "TypeScript": Grammar("tree_sitter_typescript", _TYPESCRIPT, language="language_typescript"),
    "TSX": Grammar("tree_sitter_typescript", _TYPESCRIPT, language="language_tsx"),
    "Rust": Grammar("tree_sitter_rust", _RUST, "::"),
    "Go": Grammar("tree_sitter_go", _GO),
}

# Capture: section, and what the node shows.
NOTES = {
    "pragma": ("performance", "`{text}`"),
    "goroutine": ("performance", "goroutine"),
    "pointer_cast": ("safety", "unchecked cast to a pointer"),
    "owned": ("safety", "raw pointer that owns memory: `new` or `delete`"),
    "unsafe": ("safety", "`unsafe` block"),
    "pointer": ("safety", "raw pointer"),
    "markup": ("safety", "text becomes markup: `{text}`"),
    "assertion": ("safety", "unchecked assertion of a type"),
}

_MEMORY = ("safety", "memory managed by hand: `{name}`")
_UNBOUNDED = ("safety", "writes to a buffer of unknown size: `{name}`")
_PROCESS = ("safety", "starts a process: `{name}`")
_CODE = ("safety", "evaluates text as code: `{name}`")
_LOCK = ("performance", "lock: `{name}`")

# Language family: name of what is called: section, and what it shows.
CALLS: dict[str, dict[str, tuple[str, str]]] = {
    "C": {
        **dict.fromkeys(["malloc", "calloc", "realloc", "free", "alloca"], _MEMORY),
        **dict.fromkeys(["strcpy", "strcat", "sprintf", "vsprintf", "gets"], _UNBOUNDED),
        **dict.fromkeys(["system", "popen", "execv", "execve", "execvp"], _PROCESS),
        **dict.fromkeys(["reinterpret_cast", "const_cast"], ("safety", "unchecked cast: `{name}`")),
        **dict.fromkeys(["pthread_mutex_lock", "std::lock_guard", "std::unique_lock"], _LOCK),
        "__syncthreads": ("performance", "barrier of a block: `{name}`"),
        "atomicAdd": ("performance", "atomic: `{name}`"),
    },
    "JavaScript": {"eval": _CODE, "Function": _CODE, "exec": _PROCESS, "spawn": _PROCESS},
    "Rust": {
        "transmute": ("safety", "unchecked cast: `{name}`"),
        "std::mem::transmute": ("safety", "unchecked cast: `{name}`"),
        "mem::transmute": ("safety", "unchecked cast: `{name}`"),
        "Mutex::new": _LOCK,
        "RwLock::new": _LOCK,
        "Command::new": _PROCESS,
    },
    "Go": {
        "exec.Command": _PROCESS,
        "unsafe.Pointer": ("safety", "raw pointer: `{name}`"),
    },
}
FAMILY = {"C++": "C", "CUDA": "C", "TypeScript": "JavaScript", "TSX": "JavaScript"}

# Calls whose text is the text of an error.
FAILING = frozenset(
    {
        "PyErr_SetString", "PyErr_Format", "PyErr_WarnEx",
        "panic", "unreachable", "bail", "anyhow", "expect", "assert",
        "errors.New", "fmt.Errorf", "log.Fatal", "log.Fatalf",
    }
)  # fmt: skip

_C_WORDS = (
    "if else for while do switch case default return break continue goto sizeof typedef struct "
    "union enum const static extern inline volatile void int char short long float double unsigned "
    "signed bool auto register restrict"
)
_CPP_WORDS = (
    "class namespace template typename using public private protected new delete this throw try "
    "catch operator virtual friend constexpr explicit noexcept nullptr"
)

# Words that are no names.  A parser that recovers from an error may take one for a name.
RESERVED = {
    "C": frozenset(_C_WORDS.split()),
    "C++": frozenset(f"{_C_WORDS} {_CPP_WORDS}".split()),
    "CUDA": frozenset(f"{_C_WORDS} {_CPP_WORDS}".split()),
}
