// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

// schedulerWork contains objects for which the scheduler uses all of its functions except
// preemption.
const schedulerWork = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: made-on-demand}
provisioner: storage.example.com
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
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-2]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: made}
spec: {storageClassName: made-on-demand, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: volume}
spec:
  containers: [{name: c, image: nginx}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: disk}}]
---
apiVersion: v1
kind: Pod
metadata: {name: waits-for-volume}
spec:
  containers: [{name: c, image: nginx}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: made}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  extendedResourceName: example.com/gpu
  selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-2-gpus}
spec:
  driver: gpu.example.com
  nodeName: node-2
  pool: {name: node-2, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}, {name: gpu-1}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: claims}
spec:
  containers: [{name: c, image: nginx, resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: one-gpu}]
---
apiVersion: v1
kind: Pod
metadata: {name: extended}
spec:
  containers: [{name: c, image: nginx, resources: {limits: {example.com/gpu: 1}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: nowhere}
spec:
  nodeSelector: {there: is-none}
  containers: [{name: c, image: nginx}]
---
apiVersion: v1
kind: Pod
metadata: {name: victim}
spec:
  nodeSelector: {kubernetes.io/hostname: node-1}
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: nginx, ports: [{containerPort: 80, hostPort: 8080}]}]
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
`

const preemptor = `
apiVersion: v1
kind: Pod
metadata: {name: preemptor}
spec:
  priorityClassName: high
  nodeSelector: {kubernetes.io/hostname: node-1}
  containers: [{name: c, image: nginx, ports: [{containerPort: 80, hostPort: 8080}]}]
`

const controllerWork = `
apiVersion: v1
kind: Node
metadata: {name: silent}
---
apiVersion: v1
kind: Pod
metadata: {name: leaves}
spec:
  nodeName: node-3
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: nginx}]
---
apiVersion: v1
kind: Pod
metadata: {name: held, labels: {app: held}}
spec:
  nodeName: node-3
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: nginx}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: held}
spec: {minAvailable: 1, selector: {matchLabels: {app: held}}}
---
apiVersion: v1
kind: Pod
metadata: {name: wavers}
spec:
  nodeName: node-1
  tolerations: [{key: wavers, operator: Exists, effect: NoExecute, tolerationSeconds: 3600}]
  containers: [{name: c, image: nginx}]
`

// deviceWork contains two pods that use one device each. A ResourceSlice taints one device, and
// taintOfDevice taints the other.
const deviceWork = `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-2-gpus}
spec:
  driver: gpu.example.com
  nodeName: node-2
  pool: {name: node-2, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, taints: [{key: broken, effect: NoExecute}]}
  - {name: gpu-1}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: broken}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: recalled}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: broken}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: nginx}]
  resourceClaims: [{name: gpu, resourceClaimName: broken}]
---
apiVersion: v1
kind: Pod
metadata: {name: recalled}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: nginx}]
  resourceClaims: [{name: gpu, resourceClaimName: recalled}]
`

const taintOfDevice = `
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: recall}
spec:
  deviceSelector: {driver: gpu.example.com, pool: node-2, device: gpu-1}
  taint: {key: recalled, effect: NoExecute}
`
