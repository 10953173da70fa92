// Package e2eadmission shows the admission rules on real API servers: the same
// cases through every way in (ways_test.go, testdata/cases.txt), the worked
// cases with stock kubectl, what a cluster sees when the webhook fails, and what
// the rules cost.
package e2eadmission
