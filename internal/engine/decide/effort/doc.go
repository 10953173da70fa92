// Package effort is the lowest layer of decide: what a decision may cost, what it has cost, and
// every constant that trades the one against the other.
//
// The unit is one judgement of a node by all filters, about a tenth of a microsecond. Effort is
// counted and never measured by the clock, so that a replay stops where the scheduler did. [Meter]
// counts what has been spent, [Budget] bounds one attempt, [Limits] are the constants.
package effort
