package e2eeviction

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/client-go/kubernetes"
)

func dumpRequests(client kubernetes.Interface) {
	raw, _ := client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(context.Background())
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "apiserver_request_total") && (strings.Contains(line, `resource="pods"`) || strings.Contains(line, `resource="nodes"`) || strings.Contains(line, `resource="events"`)) {
			fmt.Print(line)
		}
		if strings.HasPrefix(line, "apiserver_request_duration_seconds_sum") && strings.Contains(line, `resource="pods"`) {
			fmt.Print(line)
		}
	}
}
