// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"fmt"
	"strings"
)

// taken returns a field of a pod's spec with a host port, so that a node has room for only one such
// pod.
func taken(port int) string {
	return fmt.Sprintf("containers: [{name: c, image: nginx, ports: [{containerPort: 80, hostPort: %d}]}]", port)
}

// holder returns a manifest of a pod that uses a host port of a node in the pool.
func holder(name, labels string, port int, more ...string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {%s}}\nspec: {%s}\n---\n", name, labels,
		strings.Join(append([]string{taken(port), "nodeSelector: {pool: two}", "terminationGracePeriodSeconds: 1"}, more...), ", "))
}

// pool labels two nodes as the pool.
func (c *cluster) pool() {
	c.Helper()
	c.kubectl("label", "node", "node-4", "node-5", "pool=two", "--overwrite")
}

// preemption verifies that preemption chooses a victim that no budget protects, and that it
// violates a budget if budgets protect all possible victims.
func (c *cluster) preemption() {
	c.pool()
	c.apply(`
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: pressing}
value: 1000
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guard}
spec: {minAvailable: 1, selector: {matchLabels: {app: guarded}}}
---
` + holder("guarded", "app: guarded", 8081) + holder("free", "", 8081))
	c.runs("guarded", "free")
	c.awaits("pdb/guard", "{.status.currentHealthy} {.status.disruptionsAllowed}", "1 0")
	open := c.get("pod/free", placedOn)
	c.apply(holder("pressing-1", "", 8081, "priorityClassName: pressing"))
	c.runs("pressing-1")
	if got := c.get("pod/pressing-1", placedOn); got != open {
		c.Errorf("it is on %s, want %s", got, open)
	}
	c.stays("guarded")
	c.event("free", "Preempted", "Preempted by pod")
	c.apply(holder("pressing-2", "", 8081, "priorityClassName: pressing"))
	c.gone("pod/guarded")
	c.runs("pressing-2")
}

func (c *cluster) priorities() {
	c.pool()
	c.apply(`
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: polite}
value: 2000
preemptionPolicy: Never
`)
	if out, code := c.tryKubectl(pod("unknown", "", "priorityClassName: nobody-made-it"), "apply", "-f", "-"); code == 0 || !strings.Contains(out, "nobody-made-it") {
		c.Errorf("a priority class that is none: exit code %d\n%s", code, out)
	}
	c.apply(holder("first", "", 8082) + holder("second", "", 8082))
	c.runs("first", "second")
	c.apply(holder("polite", "", 8082, "priorityClassName: polite"))
	c.waits("polite", "not eligible due to preemptionPolicy=Never.")
	if got := c.get("pod/polite", "{.spec.priority}"); got != "2000" {
		c.Errorf("its priority is %s", got)
	}
	c.stays("first")
	c.stays("second")
	c.kubectl("delete", "pod", "first", "--now")
	c.runs("polite")
}

// overhead verifies the example in Kubernetes' documentation: requests of 500m and 1500m, and a
// RuntimeClass with an overhead of 250m.
func (c *cluster) overhead() {
	c.kubectl("apply", "-f", "../../examples/demo/overhead.yaml")
	c.kubectl("label", "pod", "test-pod", "app=overhead")
	c.runs("test-pod")
	if got := c.get("pod/test-pod", "{.spec.overhead.cpu} {.spec.overhead.memory}"); got != "250m 120Mi" {
		c.Errorf("its overhead is %q", got)
	}
	c.apply(beside)
	c.waits("beside", "Insufficient cpu")
	for line := range strings.Lines(c.kubectl("describe", "node", c.get("pod/test-pod", placedOn))) {
		if fields := strings.Fields(line); len(fields) > 5 && fields[1] == "test-pod" {
			if fields[2] != "2250m" || !strings.Contains(line, "320Mi") {
				c.Errorf("kubectl describe node says %s", line)
			}
			return
		}
	}
	c.Error("kubectl describe node does not name the pod")
}

// beside is the manifest of another pod for the node of test-pod, which has 4 CPUs. Next to the
// 2250m of test-pod, its request of 1600m would fit, but with the overhead of 250m it does not.
const beside = `
apiVersion: v1
kind: Pod
metadata: {name: beside}
spec:
  runtimeClassName: kata-fc
  affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: overhead}}}]}}
  containers: [{name: c, image: nginx, resources: {requests: {cpu: 1600m}}}]
`

func (c *cluster) pendingSaysWhy() {
	c.apply(pod("nowhere", "", "nodeSelector: {there: is-none}") + "apiVersion: v1\nkind: Pod\nmetadata: {name: huge}\nspec: {containers: [{name: c, image: nginx, resources: {requests: {cpu: 20}}}]}\n")
	const useless = " preemption: 0/6 nodes are available: 6 Preemption is not helpful for scheduling."
	c.awaits("pod/nowhere", whyNot, "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector."+useless)
	c.awaits("pod/huge", whyNot, "0/6 nodes are available: 6 Insufficient cpu."+useless)
	c.event("nowhere", "FailedScheduling", "6 node(s) didn't match Pod's node affinity/selector")
	c.kubectl("label", "node", "node-1", "there=is-none")
	c.runs("nowhere")
	c.kubectl("label", "node", "node-1", "there-")
}

// drain verifies that kubectl drain moves the pods of a Deployment with a budget from a node to
// others.
func (c *cluster) drain() {
	c.apply(`
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: shop}
spec: {minAvailable: 2, selector: {matchLabels: {app: shop}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec: {nodeSelector: {topology.kubernetes.io/zone: z1}, containers: [{name: c, image: nginx}]}
`)
	c.kubectl("rollout", "status", "deployment/shop", "--timeout=90s")
	c.awaits("pdb/shop", "{.status.disruptionsAllowed}", "1")
	drained := strings.Fields(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"))[0]
	c.T.Cleanup(func() { _, _ = c.tryKubectl("", "uncordon", drained) })
	c.kubectl("drain", drained, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=90s")
	c.kubectl("rollout", "status", "deployment/shop", "--timeout=90s")
	if left := c.kubectl("get", "pods", "--field-selector", "spec.nodeName="+drained, "-o", "name"); left != "" {
		c.Errorf("on %s are left %s", drained, left)
	}
	c.awaits("pdb/shop", "{.status.currentHealthy}", "3")
}

func (c *cluster) volume() {
	c.apply(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  storageClassName: local
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: /mnt/disk}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-5]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
` + pod("writes", "", "volumes: [{name: v, persistentVolumeClaim: {claimName: disk}}]"))
	c.awaits("pod/writes", placedOn+" {.status.phase}", "node-5 Running")
	c.awaits("pvc/disk", "{.status.phase} {.spec.volumeName}", "Bound disk")
	c.kubectl("delete", "pod/writes", "--now")
	c.kubectl("delete", "pvc/disk", "pv/disk")
}

func (c *cluster) device() {
	claiming := func(name string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {resourceClaims: [{name: gpu, resourceClaimTemplateName: one-gpu}], containers: [{name: c, image: nginx, resources: {claims: [{name: gpu}]}}]}\n---\n", name)
	}
	c.apply(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-2-gpus}
spec:
  driver: gpu.example.com
  nodeName: node-2
  pool: {name: node-2, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
---
` + claiming("first"))
	c.awaits("pod/first", placedOn+" {.status.phase}", "node-2 Running")
	claim := c.get("pod/first", "{.status.resourceClaimStatuses[0].resourceClaimName}")
	if got := c.get("resourceclaim/"+claim, "{.status.allocation.devices.results[0].device} {.status.reservedFor[0].name}"); got != "gpu-0 first" {
		c.Errorf("the claim says %q", got)
	}
	c.apply(claiming("second"))
	c.waits("second", "cannot allocate all claims")
	c.kubectl("delete", "pod", "first", "--now")
	c.awaits("pod/second", placedOn+" {.status.phase}", "node-2 Running")
	c.kubectl("delete", "pod", "second", "--now")
	c.kubectl("delete", "resourceslice/node-2-gpus", "deviceclass/gpu")
}

// webhook verifies that the API server calls Berth's webhook, and that the pods of a namespace with
// dedicated nodes run only on these nodes.
func (c *cluster) webhook() {
	owned := "dedicated=" + c.namespace
	c.tainted("node-5", owned+":NoSchedule")
	c.kubectl("label", "node", "node-5", owned)
	c.kubectl("annotate", "namespace", c.namespace, "berth.dev/dedicated-nodes="+owned)
	c.eventually(func() error { // wait until the webhook has observed the annotation
		out, _ := c.tryKubectl(pod("tried", ""), "create", "-f", "-", "--dry-run=server", "-o", "jsonpath={.spec.tolerations[*].value}")
		if !strings.Contains(out, c.namespace) {
			return fmt.Errorf("the pod is not given the toleration: %s", out)
		}
		return nil
	})
	c.kubectl("create", "deployment", "ours", "--image=nginx", "--replicas=3")
	c.kubectl("rollout", "status", "deployment/ours", "--timeout=90s")
	if got := c.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"); got != "node-5 node-5 node-5" {
		c.Errorf("they are on %s", got)
	}
	c.kubectl("label", "node", "node-5", "dedicated-")
}
