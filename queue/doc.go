// Package queue says which waiting pod is to be decided next, which must wait, and for what.
//
// A pod is in one of three places. Active pods are decided in order: priority, then who has waited longer. A pod that was
// rejected waits, with the names of the plugins that rejected it, until something happens that can help against one of these, and
// five minutes at the latest. A pod whose attempts fail backs off, one second after the first failure and twice as long after each
// other, ten seconds at most; what wakes it meanwhile makes it active when the time is up.
//
// The queue is plain data with one owner; it is told the time.
package queue
