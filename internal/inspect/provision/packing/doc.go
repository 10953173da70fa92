// Package packing answers a question about numbers: what is the cheapest set of bins into which all
// items go? Bins are nodes that can be bought, items are pods; of both only sizes, prices and who
// may be with whom are known here. What that leaves out (spreading, volumes, the order in which a
// scheduler works) is for the engine to prove afterwards.
//
// The way is that of Gilmore and Gomory. A pattern is one bin with what goes into it. A linear
// program (program.go, simplex.go) chooses how many bins of each pattern to buy, as if bins could
// be bought in parts; its dual values say what an item is worth, and patterns worth more than they
// cost (pattern.go, fullest.go) join the program until there is none. Its values, divided by what
// the best filling of a bin exceeds its price by, bound the cost of any set of bins (bound.go).
//
// A dive buys the whole bins of which the program buys most, and solves the program again for what
// is left (dive.go); then bins that are worth little are emptied and packed anew for a while
// (improve.go). Where few bins do, sets of bins are gone through by their price, and each takes all
// or is proved not to (sets.go); where there are few items, all ways are tried (exact.go).
package packing
