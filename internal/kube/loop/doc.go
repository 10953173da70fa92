// Package loop runs a core that decides and does nothing itself: one goroutine owns it and hands
// it, one after the other, what watches show, what requests returned, and that time has passed; its
// actions are carried out concurrently. It decides nothing. The scheduling cycle, taint eviction,
// node health and rebalancing run in it.
//
// Leaving an answer in the inbox never blocks: it may come from the owner itself. Watches wait only
// where 256 MiB of objects are in the inbox: the API server closes one that is not read, and the
// list that follows costs both sides more than the events that wait here, but it shows each object
// once, however often it has changed meanwhile.
//
// The owner takes in all that is in the inbox before it lets time take effect, so that the core
// decides on the newest state, and never twice without looking at the inbox in between.
package loop
