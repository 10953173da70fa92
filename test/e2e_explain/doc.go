// Package e2eexplain tests the commands that ask questions against a live cluster: that they need
// to read only, that what explain suggests helps when it is done, and that what what-if foretells
// is what then happens.
//
// TestForecastsComeTrue does random operations; -operations says how many (go test ./e2e_explain
// -run ComeTrue -operations 200 -v).
package e2eexplain
