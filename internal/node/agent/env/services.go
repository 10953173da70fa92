package env

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serviceVariables are those by which a container finds the Services of its namespace, and always
// the API server, with their names in order.
func serviceVariables(pod *v1.Pod, list func() ([]*v1.Service, error)) (map[string]string, []string, error) {
	if list == nil {
		return nil, nil, nil
	}
	all, err := list()
	if err != nil {
		return nil, nil, err
	}
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks // the API's default

	chosen := map[string]*v1.Service{}
	for _, service := range all {
		if service.Spec.ClusterIP == "" || service.Spec.ClusterIP == v1.ClusterIPNone || len(service.Spec.Ports) == 0 {
			continue
		}
		switch {
		case service.Namespace == metav1.NamespaceDefault && service.Name == "kubernetes":
			if chosen[service.Name] == nil { // a service of this name in the pod's own namespace comes first
				chosen[service.Name] = service
			}
		case service.Namespace == pod.Namespace && links:
			chosen[service.Name] = service
		}
	}
	services := make([]*v1.Service, 0, len(chosen))
	for _, service := range chosen {
		services = append(services, service)
	}
	slices.SortFunc(services, func(a, b *v1.Service) int { return cmp.Compare(a.Name, b.Name) })

	values, names := map[string]string{}, []string(nil)
	for _, service := range services {
		for _, variable := range variablesOf(service) {
			if _, again := values[variable.Name]; !again {
				names = append(names, variable.Name)
			}
			values[variable.Name] = variable.Value
		}
	}
	return values, names, nil
}

// ErrServicesUnread is the error of [Sources.Services] before the Services have been read once:
// without it a container could be started without KUBERNETES_SERVICE_HOST because the agent has
// only just started.
var ErrServicesUnread = errors.New("services have not yet been read at least once, cannot construct envvars")

// variablesOf are a Service's own variables, followed by those of Docker links, which old images
// still read.
func variablesOf(service *v1.Service) []Variable {
	prefix, ip, ports := variableName(service.Name), service.Spec.ClusterIP, service.Spec.Ports
	variables := []Variable{
		{prefix + "_SERVICE_HOST", ip},
		{prefix + "_SERVICE_PORT", strconv.Itoa(int(ports[0].Port))},
	}
	for _, port := range ports {
		if port.Name != "" {
			variables = append(variables, Variable{prefix + "_SERVICE_PORT_" + variableName(port.Name), strconv.Itoa(int(port.Port))})
		}
	}
	for i, port := range ports {
		protocol := strings.ToLower(string(cmp.Or(port.Protocol, v1.ProtocolTCP)))
		number := strconv.Itoa(int(port.Port))
		url := protocol + "://" + net.JoinHostPort(ip, number)
		if i == 0 {
			variables = append(variables, Variable{prefix + "_PORT", url})
		}
		link := prefix + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		variables = append(variables,
			Variable{link, url}, Variable{link + "_PROTO", protocol}, Variable{link + "_PORT", number}, Variable{link + "_ADDR", ip})
	}
	return variables
}

func variableName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
