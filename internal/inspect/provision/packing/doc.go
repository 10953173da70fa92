// Package packing answers a question about numbers: what is the cheapest set of bins into which all
// items go? Bins are nodes that can be bought, items are pods; of both only sizes, prices and who
// may be with whom are known here. What that leaves out (spreading, volumes, the order in which a
// scheduler works) is for the engine to prove afterwards.
//
// The way is that of Gilmore and Gomory. A pattern is one bin with what goes into it. A linear
// program (simplex.go) chooses how many bins of each pattern to buy, as if bins could be bought in
// parts; its dual values say what an item is worth, and the pattern worth more than it costs
// (pattern.go) joins the program until there is none. The program's optimum is, with a correction
// for patterns that were not found, a bound below which no set of bins can be (bound.go). Whole
// bins are bought first, what is left over is packed by value, and the dearest bins are emptied and
// packed anew for a while (round.go, improve.go). Where there are few items, the optimum is found
// by trying all ways (exact.go).
package packing
