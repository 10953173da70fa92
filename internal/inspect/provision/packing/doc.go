// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package packing solves a numeric problem: find the cheapest set of bins for all items. Bins are
// purchasable nodes, items are pods; only their sizes, prices and mutual exclusions matter here.
// The engine verifies the rest afterwards (spreading, volumes, the order of scheduling).
//
// The method is Gilmore and Gomory's. A pattern is one bin with its contents. A linear program
// (program.go) chooses the number of bins of each pattern, allowing fractional bins; its dual
// values price the items, and patterns worth more than they cost (pattern.go, fullest.go) join the
// program until none remain. The dual values also give a lower bound on the cost of any set of
// bins, after they are scaled down so that no filling of a bin is worth more than the bin
// (fluid.go).
//
// A dive buys the whole bins with the largest amounts in the program, and solves the program again
// for the rest (dive.go); then bins of low worth are repeatedly emptied and repacked (improve.go).
// For solutions of few bins, sets of bins are enumerated by price, and each set is either packed
// with everything or ruled out (sets.go). For few items, all partitions are tried.
package packing
