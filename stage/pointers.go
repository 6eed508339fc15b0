package stage

import "reflect"

// holdsPointers reports whether a T keeps something else alive, so that used
// slots must be cleared.
func holdsPointers[T any]() bool { return pointersIn(reflect.TypeFor[T]()) }

func pointersIn(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return false
	case reflect.Array:
		return t.Len() > 0 && pointersIn(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if pointersIn(t.Field(i).Type) {
				return true
			}
		}
		return false
	default:
		return true
	}
}
