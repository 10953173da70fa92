// Package loop runs a core that decides and does nothing itself: one goroutine owns it and hands
// it, one after the other, what watches show, what requests returned, and that time has passed; its
// actions are carried out concurrently. It decides nothing. The scheduling cycle, taint eviction,
// node health and rebalancing run in it.
//
// The inbox has no bound, so leaving an event there never blocks. Answers must not: they may come
// from the owner itself. Watches must not, either: the API server closes one that is not read, and
// the list that follows costs both sides more than the events that wait here.
//
// The owner takes in all that is in the inbox before it lets time take effect, so that the core
// decides on the newest state, and never twice without looking at the inbox in between.
package loop
