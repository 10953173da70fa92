// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package effort is the lowest layer of decide. It defines the permitted cost of a decision, its
// actual cost, and every constant that trades work against memory.
//
// The unit is one judgement of a node by all filters, about a tenth of a microsecond. Effort is
// counted, never measured by the clock, so that a replay stops at the same point as the scheduler.
// [Meter] counts spent effort, [Budget] bounds one attempt, [Limits] holds the constants.
package effort
