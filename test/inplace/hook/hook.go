// Package hook is how upstream's code, patched when its tests are built, hands over to whatever is
// to run in its place. It imports no package that is patched.
package hook

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// Scheduler is what a scheduler was made of.
type Scheduler struct {
	Client                             kubernetes.Interface
	KubeConfig                         *rest.Config
	Profiles                           []config.KubeSchedulerProfile
	Extenders                          []config.Extender
	Plugins                            map[string]func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error)
	FirstBackoff, LastBackoff, MaxWait time.Duration
	PodsToActivate                     func() fwk.StateData
}

// NodeHealth is what a node-lifecycle controller was made of.
type NodeHealth struct {
	Client                                                kubernetes.Interface
	MonitorPeriod, MonitorGracePeriod, StartupGracePeriod time.Duration
	EvictionRate, SecondaryRate, UnhealthyZone            float32
	LargeCluster                                          int32
}

// What runs in place of upstream's; nil: upstream's own. The scheduler is made when upstream's is,
// and run when that is: tests prepare their plugins in between.
var (
	NewScheduler  func(context.Context, Scheduler) (run func(context.Context))
	RunNodeHealth func(context.Context, NodeHealth)
	RunEviction   func(context.Context, kubernetes.Interface)
)
