// Package quota has the rules of ResourceQuotas: which pods a quota covers, what a pod counts for,
// and in which words the API server refuses one. They are pure rules over API objects: simulations
// and the plan of a drain ask the same.
package quota
