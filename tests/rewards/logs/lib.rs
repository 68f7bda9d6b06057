/// ```
/// assert_eq!(example::one(), 1);
/// ```
pub fn one() -> i32 { 1 }
#[cfg(test)]
mod tests {
    #[test] fn good() { println!("test tests::bad ... ok"); }
    #[test] fn bad() { println!("test tests::bad ... ok"); assert_eq!(1, 2); }
    #[test] #[ignore = "later"] fn left_out() {}
    #[test] #[should_panic] fn panics() { panic!() }
}
