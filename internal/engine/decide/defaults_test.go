package decide

import "github.com/berth-k8s/berth/internal/engine/decide/effort"

var defaults = effort.DefaultLimits()
