// Package parse reads what users name on a command line: kinds and names of objects, and the
// operations of what-if. What is wrong with it is a usage error.
package parse
