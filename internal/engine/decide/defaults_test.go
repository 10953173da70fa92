// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/decide/effort"

var defaults = effort.DefaultLimits()
