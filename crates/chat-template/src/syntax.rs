//! The grammar of templates: Jinja's, with `{% break %}`, `{% continue %}` and transformers' `{% generation %}`.

pub(super) mod ast;
mod cursor;
mod expression;
mod lexer;
mod statement;
mod token;

pub(super) use statement::parse;
