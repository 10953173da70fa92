// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	deviceplugin "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"

	"github.com/berth-k8s/berth/test/internal/process"
)

const widget = "berth.dev/widget"

// startDevicePlugin registers a device plugin with the node's kubelet, which has one device.
func (c *cluster) startDevicePlugin(n *node) *deviceplugin.Stub {
	c.Helper()
	folder := n.path(v1beta1.DevicePluginPath)
	plugin := deviceplugin.NewDevicePluginStub(klog.Background(), devices(v1beta1.Healthy), filepath.Join(folder, "widget.sock"), widget, false, false)
	plugin.SetAllocFunc(func(request *v1beta1.AllocateRequest, _ map[string]*v1beta1.Device) (*v1beta1.AllocateResponse, error) {
		containers := make([]*v1beta1.ContainerAllocateResponse, len(request.ContainerRequests))
		for i := range containers {
			containers[i] = &v1beta1.ContainerAllocateResponse{}
		}
		return &v1beta1.AllocateResponse{ContainerResponses: containers}, nil
	})
	c.must(plugin.Start(c.Context()), plugin.Register(c.Context(), filepath.Join(folder, filepath.Base(v1beta1.KubeletSocket)), widget, ""))
	return plugin
}

func devices(health string) []*v1beta1.Device { return []*v1beta1.Device{{ID: "one", Health: health}} }

// devicePlugin preempts the pod that has a device. While the device is broken, no pod is placed.
func (c *cluster) devicePlugin() string {
	n := c.nodes[3]
	plugin := c.startDevicePlugin(n)
	defer func() { c.must(plugin.Stop(klog.Background())) }()
	c.awaitWidgets(n, 1)
	observed := c.preempt(fmt.Sprintf("limits: {%s: 1}", widget))

	plugin.Update(devices(v1beta1.Unhealthy))
	c.awaitWidgets(n, 0)
	c.kubectl("delete", "pod", "urgent")
	c.apply(fmt.Sprintf(urgentPod, fmt.Sprintf("limits: {%s: 1}", widget)))
	c.eventually("the pod has no place", func() error {
		if !unschedulable(c.pod("urgent")) {
			return errNotYet
		}
		return nil
	})
	repaired := time.Now()
	plugin.Update(devices(v1beta1.Healthy))
	c.awaitRunning("preemption", 1)
	return fmt.Sprintf("%s; pod ready %.1f s after the device was repaired", observed, time.Since(repaired).Seconds())
}

func unschedulable(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition v1.PodCondition) bool {
		return condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonUnschedulable
	})
}

// awaitWidgets waits until pods may have this number of devices on a node.
func (c *cluster) awaitWidgets(n *node, want int64) {
	c.Helper()
	c.eventually(fmt.Sprintf("%s has %d devices", n.name, want), func() error {
		got, err := c.client.CoreV1().Nodes().Get(c.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if there := got.Status.Allocatable[widget]; there.Value() != want {
			return fmt.Errorf("it has %s", there.String())
		}
		return nil
	})
}

const driverName = "widgets.berth.dev"

// driver is a DRA driver with one device, for which nothing needs to be prepared.
type driver struct {
	*kubeletplugin.Helper
	pool               string
	prepared, released int
}

func (c *cluster) startDriver(n *node) *driver {
	c.Helper()
	root := filepath.Join(n.dir, "k")
	data := filepath.Join(root, "plugins", driverName)
	c.must(os.MkdirAll(data, 0o755))
	d := &driver{pool: n.name}
	var err error
	d.Helper, err = kubeletplugin.Start(c.Context(), d, kubeletplugin.DriverName(driverName), kubeletplugin.NodeName(n.name),
		kubeletplugin.KubeClient(c.client), kubeletplugin.RegistrarDirectoryPath(filepath.Join(root, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.HealthService(false))
	c.must(err)
	c.must(d.publish(c.Context()))
	return d
}

// publish publishes the device with taints.
func (d *driver) publish(ctx context.Context, taints ...resourcev1.DeviceTaint) error {
	return d.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		d.pool: {Slices: []resourceslice.Slice{{Devices: []resourcev1.Device{{Name: "one", Taints: taints}}}}}}})
}

// PrepareResourceClaims returns the allocated devices. The helper serializes calls.
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		d.prepared++
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: []kubeletplugin.Device{{PoolName: d.pool, DeviceName: "one"}}}
	}
	return results, nil
}

// UnprepareResourceClaims has nothing to undo.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		d.released++
		results[claim.UID] = nil
	}
	return results, nil
}

func (*driver) HandleError(_ context.Context, err error, what string) {
	klog.ErrorS(err, "DRA driver", "what", what)
}

func (*driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// claiming is a pod with a claim for a device, which tolerates a broken device for five seconds.
const claiming = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: widgets.berth.dev}
spec: {selectors: [{cel: {expression: device.driver == "widgets.berth.dev"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: widget}
spec:
  spec:
    devices:
      requests:
      - name: one
        exactly:
          deviceClassName: widgets.berth.dev
          tolerations: [{key: broken, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: claiming, labels: {scenario: claiming}}
spec:
  selector: {matchLabels: {scenario: claiming}}
  template:
    metadata: {labels: {scenario: claiming}}
    spec:
      terminationGracePeriodSeconds: 1
      resourceClaims: [{name: widget, resourceClaimTemplateName: widget}]
      containers:
      - {name: c, image: "busybox:1", command: [sleep, "100000"], resources: {claims: [{name: widget}]}}
`

// deviceTaint breaks the device of a pod with a claim. Another node has another device.
func (c *cluster) deviceTaint() string {
	drivers := map[string]*driver{}
	for _, n := range c.nodes[2:] {
		drivers[n.name] = c.startDriver(n)
		defer drivers[n.name].Stop()
	}
	c.apply(claiming)
	// The kubelet keeps a pod until its driver has released the device.
	defer c.kubectl("delete", "deployment/claiming", "deviceclass/"+driverName, "resourceclaimtemplate/widget", "--cascade=foreground")
	victim := c.awaitRunning("claiming", 1)[0]
	broken := drivers[victim.Spec.NodeName]
	began := time.Now()
	// The second taint keeps the replacement, which tolerates the first, from the broken device.
	c.must(broken.publish(c.Context(), resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute},
		resourcev1.DeviceTaint{Key: "disabled", Effect: resourcev1.DeviceTaintEffectNoSchedule}))
	evicted := c.awaitEvicted([]v1.Pod{victim}, began)
	c.between("eviction", evicted, 5, 10)
	c.gone(victim.Name)
	other := c.awaitRunning("claiming", 1)[0]
	if other.Spec.NodeName == victim.Spec.NodeName {
		c.Errorf("%s has the broken device", other.Name)
	}
	replaced := time.Since(began).Seconds()
	if broken.prepared != 1 || broken.released != 1 {
		c.Errorf("the broken device was prepared %d times and released %d times, want once", broken.prepared, broken.released)
	}
	return fmt.Sprintf("evicted after %.1f s, replaced with the other device after %.1f s", evicted, replaced)
}

const exampleDriverName = "gpu.example.com"

// exampleClaims are two pods, each with a claim for a device of upstream's example driver, which
// tolerate a recalled device for five seconds.
const exampleClaims = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: device.driver == "gpu.example.com"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: example}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.example.com
          tolerations: [{key: recalled, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: example, labels: {scenario: example}}
spec:
  replicas: 2
  selector: {matchLabels: {scenario: example}}
  template:
    metadata: {labels: {scenario: example}}
    spec:
      terminationGracePeriodSeconds: 1
      resourceClaims: [{name: gpu, resourceClaimTemplateName: example}]
      containers:
      - {name: c, image: "busybox:1", command: [sleep, "100000"], resources: {claims: [{name: gpu}]}}
`

// recall taints the device of a node. The second taint keeps away the replacement, which tolerates
// the first.
const recall = `
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: recall}
spec: {deviceSelector: {driver: gpu.example.com, pool: %[1]s}, taint: {key: recalled, effect: NoExecute}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: recall-new}
spec: {deviceSelector: {driver: gpu.example.com, pool: %[1]s}, taint: {key: closed, effect: NoSchedule}}
`

// exampleDriver runs upstream's unmodified example driver with one device on each of two nodes, and
// recalls one of the devices.
func (c *cluster) exampleDriver() string {
	cdi := map[string]string{}
	for _, n := range c.nodes[2:] {
		root := filepath.Join(n.dir, "k")
		cdi[n.name] = filepath.Join(n.dir, "cdi")
		driver, err := process.Start(filepath.Join(bin, "dra-example-kubeletplugin"), n.log("dra-driver"), "--kubeconfig", c.kubeconfig,
			"--node-name", n.name, "--num-devices", "1", "--cdi-root", cdi[n.name],
			"--kubelet-registrar-directory-path", filepath.Join(root, "plugins_registry"), "--kubelet-plugins-directory-path", filepath.Join(root, "plugins"))
		c.must(err)
		defer driver.Stop()
	}
	c.apply(exampleClaims)
	defer c.kubectl("delete", "deployment/example", "deviceclass/"+exampleDriverName, "resourceclaimtemplate/example", "--cascade=foreground")
	pods := c.awaitRunning("example", 2)
	if pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		c.Errorf("both pods have the only device of %s", pods[0].Spec.NodeName)
	}
	for name, folder := range cdi {
		if n := c.preparedClaims(folder); n != 1 {
			c.Errorf("%s has %d prepared claims, want 1", name, n)
		}
	}

	victim, began := pods[0], time.Now()
	c.apply(fmt.Sprintf(recall, victim.Spec.NodeName))
	defer c.kubectl("delete", "devicetaintrule", "recall", "recall-new", "--ignore-not-found")
	evicted := c.awaitEvicted([]v1.Pod{victim}, began)
	c.between("eviction", evicted, 5, 10)
	c.gone(victim.Name)
	c.eventually("the claim is released", func() error {
		if n := c.preparedClaims(cdi[victim.Spec.NodeName]); n != 0 {
			return fmt.Errorf("%d claims are prepared", n)
		}
		return nil
	})
	c.eventually("the replacement has no place", func() error {
		if !slices.ContainsFunc(c.pods("example"), func(pod v1.Pod) bool { return unschedulable(&pod) }) {
			return errNotYet
		}
		return nil
	})

	lifted := time.Now()
	c.kubectl("delete", "devicetaintrule", "recall", "recall-new")
	c.awaitRunning("example", 2)
	return fmt.Sprintf("evicted after %.1f s, its claim released; replaced %.1f s after the taint was lifted", evicted, time.Since(lifted).Seconds())
}

// preparedClaims returns the number of claims that the example driver describes to the container
// runtime.
func (c *cluster) preparedClaims(folder string) (n int) {
	c.Helper()
	files, err := os.ReadDir(folder)
	c.must(err)
	for _, file := range files {
		if !strings.Contains(file.Name(), "common") {
			n++
		}
	}
	return n
}
