// Package loop runs a core that decides and does nothing itself: one goroutine
// owns it and hands it, one after the other, what watches show, what requests
// were answered and that time has passed; what it asks for is carried out
// beside it. It decides nothing.
package loop
