// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
)

// ErrTooLong is the error of a preemption that exhausts its effort before finding a node. Computed
// results are kept if possible, and the next attempt continues from them.
var ErrTooLong error = &effort.TooLongError{What: "finding pods to preempt"}

var errTermsTooLong error = &effort.TooLongError{What: "counting the pods that so many terms may select"}

var errGuestsTooLong error = &effort.TooLongError{What: "judging nodes that other pods are nominated to"}
