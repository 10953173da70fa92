// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"sigs.k8s.io/yaml"
)

// cluster prints nodes and pods as `kubectl get -o yaml` does.
func cluster(nodes, pods int) []byte {
	var out bytes.Buffer
	out.WriteString("apiVersion: v1\nitems:\n")
	for i := range nodes {
		fmt.Fprintf(&out, nodeYAML, i, i, i%5, i)
	}
	for i := range pods {
		fmt.Fprintf(&out, podYAML, i%500, i, i, i%max(nodes, 1), i%200, i%250)
	}
	out.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	return out.Bytes()
}

const nodeYAML = `- apiVersion: v1
  kind: Node
  metadata:
    annotations:
      csi.volume.kubernetes.io/nodeid: '{"ebs.csi.aws.com":"i-0123456789"}'
      node.alpha.kubernetes.io/ttl: "0"
    creationTimestamp: "2026-10-02T08:11:12Z"
    labels:
      beta.kubernetes.io/arch: amd64
      kubernetes.io/arch: amd64
      kubernetes.io/hostname: node-%d
      kubernetes.io/os: linux
    name: node-%d
    resourceVersion: "123456"
    uid: 1b1ec2c0-0000-4000-8000-000000000001
  spec:
    podCIDR: 10.1.%d.0/24
    providerID: aws:///eu-central-1a/i-%d
    taints:
    - effect: NoSchedule
      key: dedicated
      value: batch
  status:
    addresses:
    - address: 10.0.0.1
      type: InternalIP
    allocatable:
      cpu: 15890m
      ephemeral-storage: "95551679124"
      hugepages-1Gi: "0"
      memory: 62116536Ki
      pods: "110"
    capacity:
      cpu: "16"
      ephemeral-storage: 104845292Ki
      hugepages-1Gi: "0"
      memory: 65133240Ki
      pods: "110"
    conditions:
    - lastHeartbeatTime: "2026-11-02T08:11:12Z"
      lastTransitionTime: "2026-10-02T08:11:12Z"
      message: kubelet has sufficient memory available
      reason: KubeletHasSufficientMemory
      status: "False"
      type: MemoryPressure
    - lastHeartbeatTime: "2026-11-02T08:11:12Z"
      lastTransitionTime: "2026-10-02T08:11:12Z"
      message: kubelet is posting ready status
      reason: KubeletReady
      status: "True"
      type: Ready
    images:
    - names:
      - registry.example.com/team/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
      - registry.example.com/team/app:v1.2.3
      sizeBytes: 123456789
    nodeInfo:
      architecture: amd64
      bootID: 3b3f0000-0000-4000-8000-000000000001
      containerRuntimeVersion: containerd://1.7.2
      kernelVersion: 6.1.0
      kubeletVersion: v1.36.3
      machineID: ec20000000000000000000000000000
      operatingSystem: linux
      osImage: Debian GNU/Linux 12 (bookworm)
      systemUUID: ec200000-0000-4000-8000-000000000001
`

const podYAML = `- apiVersion: v1
  kind: Pod
  metadata:
    creationTimestamp: "2026-11-02T08:11:12Z"
    generateName: web-7d4b9c6f5-
    labels:
      app: web-%d
      pod-template-hash: 7d4b9c6f5
    name: web-7d4b9c6f5-%06d
    namespace: default
    ownerReferences:
    - apiVersion: apps/v1
      blockOwnerDeletion: true
      controller: true
      kind: ReplicaSet
      name: web-7d4b9c6f5
      uid: 0a0a0a0a-0000-4000-8000-000000000001
    resourceVersion: "1234567"
    uid: 2c2c2c2c-0000-4000-8000-%012d
  spec:
    containers:
    - image: registry.example.com/team/app:v1.2.3
      imagePullPolicy: IfNotPresent
      name: app
      ports:
      - containerPort: 8080
        protocol: TCP
      resources:
        limits:
          memory: 512Mi
        requests:
          cpu: 100m
          memory: 256Mi
      terminationMessagePath: /dev/termination-log
      terminationMessagePolicy: File
      volumeMounts:
      - mountPath: /var/run/secrets/kubernetes.io/serviceaccount
        name: kube-api-access-x
        readOnly: true
    dnsPolicy: ClusterFirst
    enableServiceLinks: true
    nodeName: node-%d
    preemptionPolicy: PreemptLowerPriority
    priority: 0
    restartPolicy: Always
    schedulerName: default-scheduler
    securityContext: {}
    serviceAccount: default
    serviceAccountName: default
    terminationGracePeriodSeconds: 30
    tolerations:
    - effect: NoExecute
      key: node.kubernetes.io/not-ready
      operator: Exists
      tolerationSeconds: 300
    - effect: NoExecute
      key: node.kubernetes.io/unreachable
      operator: Exists
      tolerationSeconds: 300
    volumes:
    - name: kube-api-access-x
      projected:
        defaultMode: 420
        sources:
        - serviceAccountToken:
            expirationSeconds: 3607
            path: token
        - configMap:
            items:
            - key: ca.crt
              path: ca.crt
            name: kube-root-ca.crt
  status:
    conditions:
    - lastProbeTime: null
      lastTransitionTime: "2026-11-02T08:11:20Z"
      status: "True"
      type: Ready
    - lastProbeTime: null
      lastTransitionTime: "2026-11-02T08:11:12Z"
      status: "True"
      type: PodScheduled
    containerStatuses:
    - containerID: containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
      image: registry.example.com/team/app:v1.2.3
      imageID: registry.example.com/team/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
      name: app
      ready: true
      restartCount: 0
      started: true
      state:
        running:
          startedAt: "2026-11-02T08:11:19Z"
    hostIP: 10.0.0.1
    phase: Running
    podIP: 10.1.%d.%d
    qosClass: Burstable
    startTime: "2026-11-02T08:11:12Z"
`

// otherForms returns the same pods in the forms used by people and other programs: JSON, one
// document per object, flow style, and lines that only the library reads.
func otherForms(tb testing.TB, pods int) map[string][]byte {
	block := cluster(0, pods)
	var list struct{ Items []map[string]any }
	if err := yaml.Unmarshal(block, &list); err != nil {
		tb.Fatal(err)
	}
	text, err := json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "List", "items": list.Items}, "", "    ")
	if err != nil {
		tb.Fatal(err)
	}
	var documents, flow []byte
	for _, item := range list.Items {
		text, err := yaml.Marshal(item)
		if err != nil {
			tb.Fatal(err)
		}
		documents = append(append(documents, "---\n"...), text...)
		if text, err = json.Marshal(item); err != nil {
			tb.Fatal(err)
		}
		flow = append(append(append(flow, "--- # flow\n"...), text...), '\n')
	}
	return map[string][]byte{
		"block": block, "json": text, "documents": documents, "flow": flow,
		"crlf":    bytes.ReplaceAll(documents, []byte("\n"), []byte("\r\n")),
		"library": bytes.ReplaceAll(block, []byte("dnsPolicy: ClusterFirst\n"), []byte("dnsPolicy: \"Cluster\\\n      First\"\n")),
	}
}
