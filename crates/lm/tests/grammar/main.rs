//! Answers of a given form: whatever a model would like to say, what it says has the form.

#[path = "../serving/answers.rs"]
mod answers;
mod calls;
#[path = "../families/mod.rs"]
mod families;
mod hostile;
mod reasoning;
mod rows;
mod schemas;
mod valid;
mod world;
