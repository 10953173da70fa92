// Package e2eexplain tests the commands that ask questions against a live cluster: that they need
// to read only, that what explain suggests helps when it is done, and that what what-if foretells
// is what then happens.
//
// TestForecastsComeTrue does random operations; -operations says how many, and -trouble has nodes
// fall silent, pods terminate and drains go on meanwhile (go test ./e2e_explain -run ComeTrue
// -operations 100 -trouble -seed 7 -v -timeout 30m). Of a hundred and more 99 % must agree. -misses
// keeps what did not.
//
// TestDrainsComeTrue drains a node of random clusters, with -drains 1000 of so many: what-if, the
// plan of berth drain, kubectl and the drain itself agree on each pod.
package e2eexplain
